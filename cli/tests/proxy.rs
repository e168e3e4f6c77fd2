//! The command line where requests have to pass a proxy, as kubectl does.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Runs a command, and returns the first line that a listener gets.
fn first_line_at(listener: &TcpListener, server: &str, environment: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: 'http://{server}'}}}}],
         users: [{{name: c, user: {{}}}}], contexts: [{{name: c, context: {{cluster: c, user: c}}}}]}}"
    );
    fs::write(&kubeconfig, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_istio-aux"));
    command.args(["version", "--request-timeout=30s"]).env("KUBECONFIG", kubeconfig).env_remove("https_proxy");
    let mut process =
        command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    listener.set_nonblocking(true).unwrap();
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => assert!(process.try_wait().unwrap().is_none(), "the command ended without a request"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    stream.set_nonblocking(false).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    line.trim_end().to_owned()
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[test]
fn requests_pass_the_proxy_of_the_environment() {
    let (proxy, address) = listener();
    let url = format!("http://{address}");
    let line = first_line_at(&proxy, "cluster.example:6443", &[("HTTPS_PROXY", &url), ("NO_PROXY", "")]);
    assert_eq!(line, "CONNECT cluster.example:6443 HTTP/1.1");
}

#[test]
fn requests_to_no_proxy_pass_none() {
    let (server, address) = listener();
    let unreachable = [("HTTPS_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "127.0.0.1")];
    assert_eq!(first_line_at(&server, &address, &unreachable), "GET /version HTTP/1.1");
}
