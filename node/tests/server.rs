//! The agent's socket while the process has no file descriptors left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cni::protocol::{Request, Sandbox};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use node::error::Result;
use node::sandbox::{Proxies, Supervisor};
use node::server;
use tokio::time::sleep;

struct NoProxies;

impl Proxies for NoProxies {
    async fn start(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }

    async fn maintain(&self, _: &Sandbox) {}

    async fn upgrade(&self, _: &Sandbox) -> Result<()> {
        Ok(())
    }

    fn on_disk(&self) -> BTreeMap<String, Option<Sandbox>> {
        BTreeMap::new()
    }

    async fn remove(&self, _: &str) -> Result<()> {
        Ok(())
    }
}

/// It is the only test of its process, since the limit is the process'.
#[tokio::test]
async fn failed_accept_does_not_end_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let served = socket.clone();
    tokio::spawn(async move { server::serve(&served, &Supervisor::spawn(Arc::new(NoProxies), |_, _, _| {})).await });
    while !socket.exists() {
        sleep(Duration::from_millis(10)).await;
    }
    let mut stream = UnixStream::connect(&socket).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
    sleep(Duration::from_millis(100)).await;
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let request = serde_json::to_string(&Request::Check { id: "abc".into() }).unwrap();
    let ask = move || {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut response = String::new();
        BufReader::new(stream).read_line(&mut response).unwrap();
        response
    };
    let response = tokio::task::spawn_blocking(ask).await.unwrap();
    assert_eq!(response, "{\"error\":\"the proxy is not ready\"}\n");
}
