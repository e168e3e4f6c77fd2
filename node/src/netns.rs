//! Work inside a pod's network namespace. A thread that has entered one is not used for anything else.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use tokio::sync::oneshot;

/// Where pilot-agent says whether Envoy serves.
const READINESS_PORT: u16 = 15021;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns once the proxy, whose process this is, serves in its network namespace.
pub async fn wait_until_ready(pid: u32, timeout: Duration) -> Result<(), String> {
    let path = format!("/proc/{pid}/ns/net");
    let namespace = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        let entered = setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(|error| format!("setns: {error}"));
        let result = entered.and_then(|()| poll(Instant::now() + timeout, || sender.is_closed()));
        // Whoever asked may have stopped waiting.
        let _ = sender.send(result);
    });
    receiver.await.map_err(|_| "the thread in the pod's network namespace ended".to_owned())?
}

fn poll(deadline: Instant, is_cancelled: impl Fn() -> bool) -> Result<(), String> {
    loop {
        let seen = match status() {
            Ok(200) => return Ok(()),
            Ok(status) => format!("it responds {status}"),
            Err(error) => error.to_string(),
        };
        if is_cancelled() || Instant::now() >= deadline {
            return Err(format!("the proxy is not ready: {seen}"));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// The status of pilot-agent's readiness check.
fn status() -> io::Result<u16> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, READINESS_PORT));
    let mut stream = TcpStream::connect_timeout(&address, REQUEST_TIMEOUT)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(b"GET /healthz/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.take(4096).read_to_string(&mut response)?;
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no HTTP response"))
}
