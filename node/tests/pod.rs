//! The pod of a sandbox, as an API server has it.

use cni::protocol::Sandbox;
use kube::{Client, Config};
use node::pod::read_pod;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Returns a client of an API server that gives each request this response.
async fn client(status: u16, body: &Value) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close");
    let response = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    });
    Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap()
}

#[tokio::test]
async fn missing_or_other_pod_is_gone() {
    let status = |code: u16, reason: &str| json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "m", "reason": reason, "code": code});
    let pod = |uid: &str, class: &str| {
        let spec = json!({"containers": [], "runtimeClassName": class});
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "job", "uid": uid}, "spec": spec})
    };
    let sandbox = Sandbox { namespace: "team".into(), name: "job".into(), uid: "u1".into(), ..Sandbox::default() };
    for (code, body, is_gone) in [
        (404, status(404, "NotFound"), Some(true)),
        (403, status(403, "Forbidden"), Some(false)),
        (200, pod("u2", "istio-aux"), Some(true)),
        (200, pod("u1", "other"), Some(false)),
        (200, pod("u1", "istio-aux"), None),
    ] {
        let read = read_pod(&client(code, &body).await, &sandbox).await;
        assert_eq!(read.as_ref().err().map(node::error::Error::is_pod_gone), is_gone, "{read:?}");
    }
}
