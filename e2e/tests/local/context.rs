//! No part of this crate sends a request to a cluster that it may not use. The cluster here is a server that counts connections.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use e2e::command::write_program;
use serde_json::json;

/// The ways in which this crate reaches a cluster.
const CALLS: [&str; 4] = ["scenario", "client_as", "kubectl", "script"];

/// A server that ends each connection, and the directory of a kubeconfig whose current context is `production`.
struct Recorder {
    connections: Arc<AtomicUsize>,
    directory: PathBuf,
}

impl Recorder {
    fn start(name: &str) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = server.local_addr().expect("it is bound");
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        thread::spawn(move || {
            for connection in server.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                drop(connection);
            }
        });
        let directory = std::env::temp_dir().join(format!("istio-aux-context-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("the directory is made");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "production",
            "contexts": [{"name": "production", "context": {"cluster": "theirs", "user": "admin"}}],
            "clusters": [{"name": "theirs", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "admin", "user": {"token": "secret"}}],
        });
        fs::write(directory.join("kubeconfig"), config.to_string()).expect("the kubeconfig is written");
        // A program that sends a request to the address of its kubeconfig, in place of kubectl.
        let address = address.to_string().replace(':', "/");
        write_program(&directory.join("kubectl"), &format!("#!/bin/bash\nexec 3<>/dev/tcp/{address}; cat <&3\n"));
        Self { connections, directory }
    }

    /// Reaches for the cluster in a process of its own. Returns its output, and the number of connections since the start.
    fn call(&self, call: &str, context: Option<&str>) -> (Output, usize) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reach"));
        command.arg(call).env("KUBECONFIG", self.directory.join("kubeconfig"));
        command.env("PATH", format!("{}:{}", self.directory.display(), std::env::var("PATH").unwrap_or_default()));
        command
            .env_remove("ONE_NODE_CLUSTER")
            .env_remove("E2E_CONTEXT")
            .envs(context.map(|name| ("E2E_CONTEXT", name)));
        let output = command.output().expect("it runs");
        (output, self.connections.load(Ordering::SeqCst))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.directory));
    }
}

#[test]
fn unnamed_context_gets_no_request() {
    let recorder = Recorder::start("unnamed");
    for named in [None, Some("another"), Some("")] {
        for call in CALLS {
            let (output, connections) = recorder.call(call, named);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!((output.status.success(), connections), (false, 0), "{call} {named:?}: {text}");
            let refusals: Vec<&str> = text.lines().filter(|line| line.contains("next: ")).collect();
            assert!(matches!(refusals[..], [line] if line.contains("production")), "{call} {named:?}: {text}");
        }
    }
}

#[test]
fn named_context_gets_requests() {
    let recorder = Recorder::start("named");
    let mut before = 0;
    for call in CALLS {
        let (output, connections) = recorder.call(call, Some("production"));
        assert!(connections > before, "{call}: {}", String::from_utf8_lossy(&output.stderr));
        before = connections;
    }
}
