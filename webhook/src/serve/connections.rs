//! Accepts connections on one listening socket, serves HTTP/1.1 on them, and drains them at the end. API servers call webhooks
//! by HTTP/1.1 only (kubernetes#75791), so there is no HTTP/2.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

use super::connection_limit::{ConnectionLimiter, ConnectionPermit};
use super::handlers::Handler;
use super::tls::TlsReloader;

/// Limits the time of a TLS handshake.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Limits the time in which a connection is idle or sends the head of a request. API servers close idle connections after 90 s;
/// if the webhook closed one earlier, a review on its way would fail (`write: broken pipe`) and its pod would be rejected.
const HEADER_READ_TIMEOUT: Duration = Duration::from_mins(2);
const _: () = assert!(HEADER_READ_TIMEOUT.as_secs() > 90);
/// Limits the time of unfinished requests once the server stops.
const GRACEFUL_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted, for example because no file descriptor was left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Limits hyper's buffer of each connection, in bytes. The head of a request must fit.
const READ_BUFFER_LIMIT: usize = 16 << 10;
/// Answers plain HTTP on a TLS port.
const NOT_TLS: &[u8] = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nthis port takes HTTPS, not plain HTTP\n";

/// Serves the connections of one socket.
pub(super) struct Listener<H> {
    pub(super) socket: TcpListener,
    /// Without it, plain HTTP is served.
    pub(super) tls: Option<Arc<TlsReloader>>,
    pub(super) handler: H,
    /// If set, each response closes its connection.
    pub(super) closing: Arc<AtomicBool>,
    pub(super) limiter: Arc<ConnectionLimiter>,
}

impl<H: Handler> Listener<H> {
    /// Serves until the sender of `shutdown` is dropped, then waits for unfinished requests.
    pub(super) async fn run(self, mut shutdown: watch::Receiver<()>) -> io::Result<()> {
        let socket = tokio::net::TcpListener::from_std(self.socket)?;
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                _ = shutdown.changed() => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let connection = Connection {
                        peer,
                        permit: self.limiter.acquire(),
                        handler: self.handler.clone(),
                        closing: self.closing.clone(),
                        watcher: graceful.watcher(),
                    };
                    tokio::spawn(connection.run(stream, self.tls.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
        drop(socket);
        if timeout(GRACEFUL_SHUTDOWN_TIMEOUT, graceful.shutdown()).await.is_err() {
            tracing::warn!("dropped requests that were unfinished after {GRACEFUL_SHUTDOWN_TIMEOUT:?}");
        }
        Ok(())
    }
}

/// Serves one connection.
struct Connection<H> {
    peer: SocketAddr,
    permit: Arc<ConnectionPermit>,
    handler: H,
    closing: Arc<AtomicBool>,
    watcher: Watcher,
}

impl<H: Handler> Connection<H> {
    /// Serves until the connection ends or is evicted.
    async fn run(self, stream: TcpStream, tls: Option<Arc<TlsReloader>>) {
        let (peer, permit) = (self.peer, self.permit.clone());
        tokio::select! {
            // A request that has arrived is answered before the connection is closed.
            biased;
            () = self.serve_with_tls(stream, tls) => {}
            () = permit.evicted() => tracing::debug!(%peer, "evicted a connection: too many, or too much memory"),
        }
    }

    async fn serve_with_tls(self, stream: TcpStream, tls: Option<Arc<TlsReloader>>) {
        let Some(tls) = tls else { return self.serve(stream).await };
        let peer = self.peer;
        match timeout(TLS_HANDSHAKE_TIMEOUT, accept_tls(stream, &tls)).await {
            Ok(Ok(Some(stream))) => self.serve(stream).await,
            Ok(Ok(None)) => tracing::debug!(%peer, "no TLS: the client spoke plain HTTP, or no certificate is loaded"),
            Ok(Err(error)) => tracing::debug!(%peer, %error, "the TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "the TLS handshake took longer than {TLS_HANDSHAKE_TIMEOUT:?}"),
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let Self { peer, permit, handler, closing, watcher } = self;
        let service = service_fn(move |request| {
            let (response, closing) = (handler.clone().handle(request, permit.start_request()), closing.clone());
            async move {
                let mut response = response.await;
                if closing.load(Ordering::Relaxed) {
                    // The client sends its next request to another replica.
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response)
            }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADER_READ_TIMEOUT).max_buf_size(READ_BUFFER_LIMIT);
        if let Err(error) = watcher.watch(http.serve_connection(TokioIo::new(stream), service)).await {
            tracing::debug!(%peer, %error, "a connection ended with an error");
        }
    }
}

/// Accepts TLS on a new connection. Returns `None` if no certificate is loaded, or if the client speaks plain HTTP, which gets
/// an error message.
async fn accept_tls(mut stream: TcpStream, tls: &TlsReloader) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    // A TLS record begins with its type, which is 22 for a handshake. HTTP begins with the name of a method.
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        stream.write_all(NOT_TLS).await?;
        stream.shutdown().await?;
        return Ok(None);
    }
    let Some(acceptor) = tls.acceptor() else { return Ok(None) };
    acceptor.accept(stream).await.map(Some)
}
