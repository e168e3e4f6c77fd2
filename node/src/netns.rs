//! Requests to proxies from inside their pods' network namespaces, on threads that are used for nothing else.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use tokio::sync::oneshot;

use crate::error::{Context, Error, Result};

/// The address by which the agent probes a proxy: 127.0.0.1 is redirected to the serving one (`proxy/ports.rs`). The mesh's
/// rules do not redirect root's connections on the loopback interface.
const LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a response that are read.
const RESPONSE_LIMIT: u64 = 4096;

/// Returns when the proxy of this process is ready.
pub async fn wait_until_ready(pid: u32, readiness_port: u16, timeout: Duration) -> Result<()> {
    enter(pid, move |is_cancelled| poll(readiness_port, Instant::now() + timeout, is_cancelled)).await
}

/// Closes an Envoy's listeners by its admin interface. Connections that wait to be accepted go to another process that listens
/// on the same port (`tcp_migrate_req`, Linux 5.14). Accepted ones go on; HTTP ones until their next response.
pub async fn drain(pid: u32, admin_port: u16) -> Result<()> {
    enter(pid, move |_| {
        if let Err(error) = fs::write("/proc/sys/net/ipv4/tcp_migrate_req", "1") {
            tracing::warn!(%error, "no tcp_migrate_req: connections that wait to be accepted are refused");
        }
        // The first closes HTTP connections and leaves the listeners open.
        for what in ["POST /drain_listeners?graceful&skip_exit", "POST /drain_listeners"] {
            let (status, _) = request(Ipv4Addr::LOCALHOST, admin_port, what).context("Envoy")?;
            if status != 200 {
                return Err(Error::new(format_args!("Envoy responds {status} to {what}")));
            }
        }
        Ok(())
    })
    .await
}

/// Returns the number of connections that an Envoy serves. Envoy counts them every 5 s.
pub async fn connections(pid: u32, admin_port: u16) -> Result<u64> {
    enter(pid, move |_| {
        let (_, text) =
            request(Ipv4Addr::LOCALHOST, admin_port, "GET /stats?filter=server.total_connections").context("Envoy")?;
        let count = text.lines().find_map(|line| line.strip_prefix("server.total_connections: ")?.trim().parse().ok());
        count.context("Envoy does not count its connections")
    })
    .await
}

/// Runs `work` in the network namespace of a process, on a thread of its own.
async fn enter<T: Send + 'static>(
    pid: u32,
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T> + Send + 'static,
) -> Result<T> {
    let path = format!("/proc/{pid}/ns/net");
    let namespace = File::open(&path).context(&path)?;
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        let entered = setns(&namespace, CloneFlags::CLONE_NEWNET);
        let result = entered.context("setns").and_then(|()| work(&|| sender.is_closed()));
        // The caller may have stopped waiting.
        let _ = sender.send(result);
    });
    receiver.await.context("the thread in the pod's network namespace")?
}

fn poll(port: u16, deadline: Instant, is_cancelled: impl Fn() -> bool) -> Result<()> {
    loop {
        let outcome = match request(LOOPBACK, port, "GET /healthz/ready") {
            Ok((200, _)) => return Ok(()),
            Ok((status, _)) => format!("it responds {status}"),
            Err(error) => error.to_string(),
        };
        if is_cancelled() || Instant::now() >= deadline {
            return Err(Error::new(format_args!("the proxy is not ready: {outcome}")));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Sends a request, and returns the status and the response as text.
fn request(address: Ipv4Addr, port: u16, what: &str) -> io::Result<(u16, String)> {
    let address = SocketAddr::from((address, port));
    let mut stream = TcpStream::connect_timeout(&address, REQUEST_TIMEOUT)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(format!("{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut response = String::new();
    stream.take(RESPONSE_LIMIT).read_to_string(&mut response)?;
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no HTTP response"))?;
    Ok((status, response))
}
