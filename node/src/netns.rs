//! HTTP requests to proxies from inside their pods' network namespaces, by sockets that are opened there.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use nix::sched::{CloneFlags, setns};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rtnetlink::LinkUnspec;
use tokio::net::TcpSocket;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Context, Error, Result};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Limits a request as a whole: a payload may listen in place of its proxy, and respond slowly.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Limits a check of a proxy that serves, which may have little of a busy node's time.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Istio's path of the proxy's readiness.
const READINESS: &str = "/healthz/ready";
/// The number of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;
const READ_BUFFER_LIMIT: usize = 16 << 10;
/// Bytes of one line of a response.
const LINE_LIMIT: usize = 16 << 10;

/// Holds a pod's network namespace, whatever becomes of the process by which it was found.
#[derive(Debug, Clone)]
pub struct Network {
    pid: u32,
    namespace: Arc<File>,
    endpoints: Endpoints,
}

/// Holds the addresses at which the agent reaches the proxies in a pod's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Endpoints {
    /// For readiness. Not localhost, which is redirected to the serving proxy (`proxy/rules.rs`): Envoy listens on all addresses,
    /// and the mesh's rules do not redirect root's loopback connections.
    readiness: IpAddr,
    /// For the admin interface.
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
        Ok(Self { pid, namespace, endpoints: Endpoints::of(addresses) })
    }

    /// Returns the process by which it was found, which may have ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns when the proxy with this port is ready.
    pub async fn wait_until_ready(&self, readiness_port: u16, limit: Duration) -> Result<()> {
        let address = SocketAddr::from((self.endpoints.readiness, readiness_port));
        let deadline = Instant::now() + limit;
        loop {
            match ready(self.request(address, &Method::GET, READINESS, |_| ()).await) {
                Err(_) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
                result => return result,
            }
        }
    }

    /// Returns whether the proxy with this port is ready. Fails where it could not be asked, as without a free descriptor.
    pub async fn check(&self, readiness_port: u16) -> Result<Result<()>> {
        let address = SocketAddr::from((self.endpoints.readiness, readiness_port));
        let socket = self.socket(address).await?;
        let socket = async { Ok(socket) };
        Ok(ready(exchange_within(CHECK_TIMEOUT, socket, address, &Method::GET, READINESS, |_| ()).await))
    }

    /// Closes an Envoy's listeners by its admin interface. Connections that wait to be accepted go to another process that
    /// listens on the same port (`tcp_migrate_req`, Linux 5.14). Accepted ones go on; HTTP ones until their next response.
    pub async fn drain(&self, admin_port: u16) -> Result<()> {
        if let Err(error) = self.enter(|| fs::write("/proc/sys/net/ipv4/tcp_migrate_req", "1")).await {
            tracing::warn!(%error, "no tcp_migrate_req: connections that wait to be accepted are refused");
        }
        // The first closes HTTP connections and leaves the listeners open.
        for path in ["/drain_listeners?graceful&skip_exit", "/drain_listeners"] {
            self.ask_admin(admin_port, &Method::POST, path, |_| ()).await?;
        }
        Ok(())
    }

    /// Returns the number of connections that an Envoy serves. Envoy counts them every 5 s.
    pub async fn connections(&self, admin_port: u16) -> Result<u64> {
        let mut count = None;
        let read = |line: &str| {
            count = count.or(line.strip_prefix("server.total_connections: ").and_then(|count| count.parse().ok()));
        };
        self.ask_admin(admin_port, &Method::GET, "/stats?filter=server.total_connections", read).await?;
        count.context("Envoy does not count its connections")
    }

    /// Sets the loopback interface up, which containerd sets down before its plugins remove the network.
    async fn raise_loopback(&self) -> Result<()> {
        let runtime = Handle::current();
        let open = move || {
            let _entered = runtime.enter();
            rtnetlink::new_connection()
        };
        let (connection, netlink, _) = self.enter(open).await?;
        let raise = async move {
            let message = LinkUnspec::new_with_index(LOOPBACK).up().build();
            netlink.link().set(message).execute().await.context("the loopback interface")
        };
        let raised = async { tokio::join!(raise, connection).0 };
        timeout(REQUEST_TIMEOUT, raised).await.context("the loopback interface")?
    }

    /// Gives each line of the counters that match Envoy's `filter`, in Prometheus' text format.
    pub async fn counters(&self, admin_port: u16, filter: &str, line: impl FnMut(&str)) -> Result<()> {
        self.raise_loopback().await?;
        let filter = utf8_percent_encode(filter, NON_ALPHANUMERIC);
        let path = format!("/stats/prometheus?usedonly&type=Counters&filter={filter}");
        self.ask_admin(admin_port, &Method::GET, &path, line).await
    }

    async fn ask_admin(&self, port: u16, method: &Method, path: &str, line: impl FnMut(&str)) -> Result<()> {
        let address = SocketAddr::from((self.endpoints.admin, port));
        match self.request(address, method, path, line).await.context("Envoy")? {
            StatusCode::OK => Ok(()),
            status => Err(Error::new(format_args!("Envoy responds {status} to {path}"))),
        }
    }

    /// Sends a request, gives each line of the response, and returns the status.
    async fn request(
        &self,
        address: SocketAddr,
        method: &Method,
        path: &str,
        line: impl FnMut(&str),
    ) -> Result<StatusCode> {
        exchange_within(REQUEST_TIMEOUT, self.socket(address), address, method, path, line).await
    }

    /// Opens a socket for this address in the namespace.
    async fn socket(&self, address: SocketAddr) -> Result<TcpSocket> {
        self.enter(move || if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }).await
    }

    /// Runs `work` in the namespace, on a thread of its own.
    async fn enter<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
        let namespace = Arc::clone(&self.namespace);
        let (sender, receiver) = oneshot::channel();
        let thread = thread::Builder::new().spawn(move || {
            let entered = setns(&namespace, CloneFlags::CLONE_NEWNET);
            // The caller may have stopped waiting.
            let _ = sender.send(entered.context("setns").and_then(|()| Ok(work()?)));
        });
        thread.context("a thread for the pod's network namespace")?;
        receiver.await.context("the thread in the pod's network namespace")?
    }
}

/// Fails unless the status is that of a proxy that is ready.
fn ready(status: Result<StatusCode>) -> Result<()> {
    match status.context("the proxy is not ready")? {
        StatusCode::OK => Ok(()),
        status => Err(Error::new(format_args!("the proxy is not ready: it responds {status}"))),
    }
}

async fn exchange_within(
    limit: Duration,
    socket: impl Future<Output = Result<TcpSocket>>,
    address: SocketAddr,
    method: &Method,
    path: &str,
    line: impl FnMut(&str),
) -> Result<StatusCode> {
    let exchange = async { exchange(socket.await?, address, method, path, line).await };
    timeout(limit, exchange).await.unwrap_or_else(|_| Err(Error::new(format_args!("no response in {limit:?}"))))
}

async fn exchange(
    socket: TcpSocket,
    address: SocketAddr,
    method: &Method,
    path: &str,
    line: impl FnMut(&str),
) -> Result<StatusCode> {
    let stream = socket.connect(address).await?;
    let mut http = http1::Builder::new();
    let (mut sender, connection) = http.max_buf_size(READ_BUFFER_LIMIT).handshake(TokioIo::new(stream)).await?;
    let request = Request::builder().method(method).uri(path).header(HOST, "localhost").body(Empty::<Bytes>::new())?;
    let response = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        give_lines(body, line).await?;
        Ok(head.status)
    };
    // Its errors are the response's, too.
    let (response, _) = tokio::join!(response, connection);
    response
}

async fn give_lines(mut body: Incoming, mut line: impl FnMut(&str)) -> Result<()> {
    let mut rest = Vec::new();
    while let Some(frame) = body.frame().await {
        rest.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data));
        let complete = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        String::from_utf8_lossy(&rest[..complete]).lines().for_each(&mut line);
        rest.drain(..complete);
        if rest.len() > LINE_LIMIT {
            return Err(Error::new("a line is too long"));
        }
    }
    String::from_utf8_lossy(&rest).lines().for_each(line);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
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

    /// Asks a server of these parts, and returns the status and the lines.
    async fn asked(parts: Vec<&'static str>, limit: Duration) -> Result<(StatusCode, Vec<String>)> {
        let address = server(parts, Duration::from_millis(20));
        let mut lines = Vec::new();
        let socket = async { Ok(TcpSocket::new_v4()?) };
        let take = |line: &str| lines.push(line.to_owned());
        let status = exchange_within(limit, socket, address, &Method::GET, "/", take).await?;
        Ok((status, lines))
    }

    #[tokio::test]
    async fn response_in_parts_is_read_by_lines() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for parts in [
            vec!["HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", "a\nb", "c\nd"],
            vec![chunked, "3\r\na\nb\r\n4\r\nc\nd\n\r\n", "0\r\n\r\n"],
        ] {
            let lines = ["a", "bc", "d"].map(str::to_owned).to_vec();
            assert_eq!(asked(parts, Duration::from_secs(10)).await.unwrap(), (StatusCode::OK, lines));
        }
    }

    #[tokio::test]
    async fn line_without_an_end_is_an_error() {
        let head = "HTTP/1.1 200 OK\r\n\r\n";
        let part: &str = "x".repeat(LINE_LIMIT).leak();
        let error = asked(vec![head, part, part], Duration::from_secs(10)).await.unwrap_err();
        assert_eq!(error.to_string(), "a line is too long");
    }

    #[tokio::test]
    async fn dripping_response_ends_at_the_deadline() {
        let mut parts = vec!["HTTP/1.1 200 OK\r\n\r\n"];
        parts.extend(["x"; 200]);
        let began = Instant::now();
        let error = asked(parts, Duration::from_millis(200)).await.unwrap_err();
        assert_eq!(error.to_string(), "no response in 200ms");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}
