//! Requests to proxies from inside their pods' network namespaces, on threads that are used for nothing else.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use tokio::sync::oneshot;

use crate::error::{Context, Error, Result};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Limits a request as a whole: a payload may listen in place of its proxy, and respond slowly.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Limits a check of a proxy that serves, which may have little of a busy node's time.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a response that are read.
const RESPONSE_LIMIT: usize = 4096;

/// Holds a pod's network namespace, whatever becomes of the process by which it was found.
#[derive(Debug, Clone)]
pub struct Network {
    namespace: Arc<File>,
    endpoints: Endpoints,
}

/// Holds the addresses at which the agent reaches the proxies in a pod's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Endpoints {
    /// Of readiness, on which Envoy listens at all addresses. Localhost is redirected to the serving proxy (`proxy/ports.rs`),
    /// so it is another one; the mesh's rules do not redirect root's connections on the loopback interface.
    readiness: IpAddr,
    /// Of the admin interface.
    admin: IpAddr,
}

impl Endpoints {
    /// Returns those of a pod with these addresses. Envoy listens on IPv6 in a pod that has nothing else (Istio's
    /// `pkg/bootstrap/config.go`).
    fn of(pod: &[IpAddr]) -> Self {
        match pod.first() {
            Some(&first) if pod.iter().all(IpAddr::is_ipv6) => {
                Self { readiness: first, admin: Ipv6Addr::LOCALHOST.into() }
            }
            _ => Self { readiness: Ipv4Addr::new(127, 0, 0, 2).into(), admin: Ipv4Addr::LOCALHOST.into() },
        }
    }
}

impl Network {
    /// Opens the network namespace of a process of a pod with these addresses.
    pub fn of(pid: u32, addresses: &[IpAddr]) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        let namespace = Arc::new(File::open(&path).context(path)?);
        Ok(Self { namespace, endpoints: Endpoints::of(addresses) })
    }

    /// Returns when the proxy with this port is ready.
    pub async fn wait_until_ready(&self, readiness_port: u16, timeout: Duration) -> Result<()> {
        let address = SocketAddr::from((self.endpoints.readiness, readiness_port));
        self.enter(move |is_cancelled| poll(address, Instant::now() + timeout, is_cancelled)).await
    }

    /// Fails unless the proxy with this port is ready.
    pub async fn check(&self, readiness_port: u16) -> Result<()> {
        let address = SocketAddr::from((self.endpoints.readiness, readiness_port));
        self.enter(move |_| ask_readiness(address, CHECK_TIMEOUT)).await
    }

    /// Closes an Envoy's listeners by its admin interface. Connections that wait to be accepted go to another process that
    /// listens on the same port (`tcp_migrate_req`, Linux 5.14). Accepted ones go on; HTTP ones until their next response.
    pub async fn drain(&self, admin_port: u16) -> Result<()> {
        let address = SocketAddr::from((self.endpoints.admin, admin_port));
        self.enter(move |_| {
            if let Err(error) = fs::write("/proc/sys/net/ipv4/tcp_migrate_req", "1") {
                tracing::warn!(%error, "no tcp_migrate_req: connections that wait to be accepted are refused");
            }
            // The first closes HTTP connections and leaves the listeners open.
            for what in ["POST /drain_listeners?graceful&skip_exit", "POST /drain_listeners"] {
                let (status, _) = ask_admin(address, what)?;
                if status != 200 {
                    return Err(Error::new(format_args!("Envoy responds {status} to {what}")));
                }
            }
            Ok(())
        })
        .await
    }

    /// Returns the number of connections that an Envoy serves. Envoy counts them every 5 s.
    pub async fn connections(&self, admin_port: u16) -> Result<u64> {
        let address = SocketAddr::from((self.endpoints.admin, admin_port));
        self.enter(move |_| {
            let (_, text) = ask_admin(address, "GET /stats?filter=server.total_connections")?;
            let count =
                text.lines().find_map(|line| line.strip_prefix("server.total_connections: ")?.trim().parse().ok());
            count.context("Envoy does not count its connections")
        })
        .await
    }

    /// Runs `work` in the namespace, on a thread of its own.
    async fn enter<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let namespace = Arc::clone(&self.namespace);
        let (sender, receiver) = oneshot::channel();
        let thread = thread::Builder::new().spawn(move || {
            let entered = setns(&namespace, CloneFlags::CLONE_NEWNET);
            let result = entered.context("setns").and_then(|()| work(&|| sender.is_closed()));
            // The caller may have stopped waiting.
            let _ = sender.send(result);
        });
        thread.context("a thread for the pod's network namespace")?;
        receiver.await.context("the thread in the pod's network namespace")?
    }
}

fn poll(address: SocketAddr, deadline: Instant, is_cancelled: impl Fn() -> bool) -> Result<()> {
    loop {
        let Err(error) = ask_readiness(address, REQUEST_TIMEOUT) else { return Ok(()) };
        if is_cancelled() || Instant::now() >= deadline {
            return Err(error);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn ask_readiness(address: SocketAddr, timeout: Duration) -> Result<()> {
    let status = request(address, "GET /healthz/ready", timeout).map(|(status, _)| status);
    match status.context("the proxy is not ready")? {
        200 => Ok(()),
        status => Err(Error::new(format_args!("the proxy is not ready: it responds {status}"))),
    }
}

fn ask_admin(address: SocketAddr, what: &str) -> Result<(u16, String)> {
    request(address, what, REQUEST_TIMEOUT).context("Envoy")
}

/// Sends a request, and returns the status and the response as text.
fn request(address: SocketAddr, what: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let deadline = Instant::now() + timeout;
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_write_timeout(Some(time_left(deadline)?))?;
    stream.write_all(format!("{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())?;
    let (mut response, mut part) = (Vec::new(), [0; 1024]);
    while response.len() < RESPONSE_LIMIT {
        stream.set_read_timeout(Some(time_left(deadline)?))?;
        match stream.read(&mut part)? {
            0 => break,
            length => response.extend_from_slice(&part[..length]),
        }
    }
    let response = String::from_utf8_lossy(&response).into_owned();
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no HTTP response"))?;
    Ok((status, response))
}

/// Returns the time until the deadline, which is an error once it has passed.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Serves one connection by these parts with a pause after each, and returns the address.
    fn server(parts: Vec<&'static str>, pause: Duration) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 512]).unwrap() > 0);
            for part in parts {
                // The client stops reading at its deadline.
                let _ = stream.write_all(part.as_bytes());
                thread::sleep(pause);
            }
        });
        address
    }

    #[test]
    fn proxy_of_ipv6_only_pod_is_asked_by_ipv6() {
        for (pod, readiness, admin) in [
            ("10.0.0.7", "127.0.0.2", "127.0.0.1"),
            ("10.0.0.7 fd00::7", "127.0.0.2", "127.0.0.1"),
            ("fd00::7 10.0.0.7", "127.0.0.2", "127.0.0.1"),
            ("fd00::7", "fd00::7", "::1"),
            ("fd00::7 fd01::7", "fd00::7", "::1"),
        ] {
            let pod: Vec<IpAddr> = pod.split(' ').map(|address| address.parse().unwrap()).collect();
            let expected = Endpoints { readiness: readiness.parse().unwrap(), admin: admin.parse().unwrap() };
            assert_eq!(Endpoints::of(&pod), expected, "{pod:?}");
        }
    }

    #[test]
    fn response_in_parts_is_read_as_a_whole() {
        let address = server(vec!["HTTP/1.1 200 OK\r\n\r\n", "a", "b"], Duration::from_millis(5));
        let response = request(address, "GET /", Duration::from_secs(10)).unwrap();
        assert_eq!(response, (200, "HTTP/1.1 200 OK\r\n\r\nab".to_owned()));
    }

    #[test]
    fn dripping_response_ends_at_the_deadline() {
        let address = server(vec!["x"; 200], Duration::from_millis(20));
        let (began, timeout) = (Instant::now(), Duration::from_millis(200));
        let error = request(address, "GET /", timeout).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}
