//! The pod of a sandbox, as an API server has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cni::protocol::Sandbox;
use kube::{Client, Config};
use node::pod::{is_pod_over, read_pod};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Returns a client of an API server that gives each request this response, and the number of requests.
async fn client(status: u16, body: &Value) -> (Client, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let requests = Arc::clone(&count);
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
            requests.fetch_add(1, Ordering::SeqCst);
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    (node::pod::client(config, Duration::from_secs(10)).unwrap(), count)
}

fn sandbox() -> Sandbox {
    Sandbox { namespace: "team".into(), name: "job".into(), uid: "u1".into(), ..Sandbox::default() }
}

#[tokio::test]
async fn missing_other_or_ended_pod_is_over() {
    let status = |code: u16, reason: &str| json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "m", "reason": reason, "code": code});
    let pod = |uid: &str, phase: &str| {
        let spec = json!({"containers": [], "runtimeClassName": "istio-aux"});
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "job", "uid": uid}, "spec": spec, "status": {"phase": phase}})
    };
    let sandbox = sandbox();
    for (code, body, is_over, is_read) in [
        (404, status(404, "NotFound"), Some(true), false),
        (403, status(403, "Forbidden"), None, false),
        (200, pod("u2", "Running"), Some(true), false),
        (200, pod("u1", "Succeeded"), Some(true), true),
        (200, pod("u1", "Failed"), Some(true), true),
        (200, pod("u1", "Pending"), Some(false), true),
        (200, pod("u1", "Running"), Some(false), true),
    ] {
        let (client, _) = client(code, &body).await;
        assert_eq!(is_pod_over(&client, &sandbox).await.ok(), is_over, "{body}");
        assert_eq!(read_pod(&client, &sandbox).await.is_ok(), is_read, "{body}");
    }
    let large = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "job", "uid": "u1", "annotations": {"a": "b".repeat(1 << 20)}}, "spec": {"containers": [], "runtimeClassName": "istio-aux"}});
    let (client_of_large, _) = client(200, &large).await;
    assert_eq!(is_pod_over(&client_of_large, &sandbox).await.ok(), Some(false));
    let error = read_pod(&client_of_large, &sandbox).await.unwrap_err().to_string();
    assert_eq!(error, "the pod is larger than 1 MiB, in JSON");
    let other = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "job", "uid": "u1"}, "spec": {"containers": [], "runtimeClassName": "other"}});
    let (client_of_other, _) = client(200, &other).await;
    let error = read_pod(&client_of_other, &sandbox).await.unwrap_err().to_string();
    assert_eq!(error, "the pod's runtime class is not istio-aux");
}

#[tokio::test]
async fn overloaded_api_server_is_asked_once() {
    for code in [429, 503, 504] {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "m", "reason": "r", "code": code});
        let (client, requests) = client(code, &status).await;
        assert!(read_pod(&client, &sandbox()).await.is_err());
        assert_eq!(requests.load(Ordering::SeqCst), 1, "{code}");
    }
}
