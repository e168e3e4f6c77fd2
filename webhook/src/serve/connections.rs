//! One listening socket: connections accepted, given TLS where it is wanted, served, and drained at the end.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

use super::crowd::{Crowd, Member, Open, Place};
use super::routes::Routes;
use super::tls::Certificate;

/// How long a client may take to shake hands.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long a client may take to send a request's head, and so how long a connection may be idle. Longer than the 90 s
/// after which the API server closes it: were this the one that closes, a review could be on its way, and a pod of failure
/// policy Fail be refused for that (`write: broken pipe`).
const HEAD_WITHIN: Duration = Duration::from_mins(2);
const _: () = assert!(HEAD_WITHIN.as_secs() > 90);
/// How long open requests may take once the server stops.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);
/// How long a request may take that had begun when its connection was to give way.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// How long a client of HTTP/2 may leave a ping unanswered, and pause between pings.
const PING_EVERY: Duration = Duration::from_mins(1);
/// Pause after a connection could not be accepted, out of file descriptors for one.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// What a TLS port answers to plain HTTP.
const NOT_TLS: &[u8] = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nthis port takes HTTPS, not plain HTTP\n";

pub(super) struct Listener<R> {
    socket: TcpListener,
    tls: Option<Arc<Certificate>>,
    routes: R,
    /// Whether each answer is to be its connection's last.
    closing: Arc<AtomicBool>,
    crowd: Arc<Crowd>,
}

impl<R: Routes> Listener<R> {
    /// Plain HTTP, with at most so many connections.
    pub(super) fn plain(socket: TcpListener, routes: R, at_most: usize) -> Self {
        Self { socket, tls: None, routes, closing: Arc::default(), crowd: Crowd::new(at_most) }
    }

    /// The same over TLS. Once `closing` is set, each answer is its connection's last.
    pub(super) fn tls(self, certificate: Arc<Certificate>, closing: Arc<AtomicBool>) -> Self {
        Self { tls: Some(certificate), closing, ..self }
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `stopped`'s sender is gone, then waits for open requests.
    pub(super) async fn run(self, mut stopped: watch::Receiver<()>) {
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                _ = stopped.changed() => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let Some(place) = self.crowd.join() else {
                        tracing::warn!(%peer, "refused a connection: all others are busy");
                        continue;
                    };
                    let connection = Connection {
                        peer,
                        routes: self.routes.clone(),
                        closing: self.closing.clone(),
                        watcher: graceful.watcher(),
                    };
                    tokio::spawn(in_place(place, stream, self.tls.clone(), connection));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_AGAIN_AFTER).await;
                }
            }
        }
        drop(self.socket);
        if timeout(DRAIN_WITHIN, graceful.shutdown()).await.is_err() {
            tracing::warn!("requests were still open after {DRAIN_WITHIN:?}, and are dropped");
        }
    }
}

/// What serves one connection.
struct Connection<R> {
    peer: SocketAddr,
    routes: R,
    closing: Arc<AtomicBool>,
    watcher: Watcher,
}

/// Serves a connection until it ends, or is to give way to another.
async fn in_place<R: Routes>(
    place: Place,
    stream: TcpStream,
    tls: Option<Arc<Certificate>>,
    connection: Connection<R>,
) {
    let peer = connection.peer;
    let mut running = std::pin::pin!(connection.run(stream, tls, place.member().clone()));
    tokio::select! {
        () = &mut running => return,
        () = place.until_sent_away() => tracing::debug!(%peer, "an idle connection gives way to a new one"),
        () = until_overdue(place.member()) => tracing::debug!(%peer, "nothing was asked within {HEAD_WITHIN:?}"),
    }
    if place.has_open_request() {
        // It has begun since.
        let _ = timeout(LEAVE_WITHIN, running).await;
    }
}

/// Waits until a client should have asked for something and has not: hyper has no limit before it knows which HTTP it speaks.
async fn until_overdue(member: &Member) {
    sleep(HEAD_WITHIN).await;
    if member.has_asked() {
        std::future::pending::<()>().await;
    }
}

impl<R: Routes> Connection<R> {
    async fn run(self, stream: TcpStream, tls: Option<Arc<Certificate>>, member: Arc<Member>) {
        let Some(tls) = tls else { return self.serve(stream, member).await };
        let peer = self.peer;
        match timeout(HANDSHAKE_WITHIN, shake_hands(stream, &tls)).await {
            Ok(Ok(Some(stream))) => self.serve(stream, member).await,
            Ok(Ok(None)) => {
                tracing::debug!(%peer, "no TLS: the client spoke plain HTTP, or there is no certificate yet");
            }
            Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS came about"),
            Err(_) => tracing::debug!(%peer, "no TLS came about within {HANDSHAKE_WITHIN:?}"),
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static, member: Arc<Member>) {
        let Self { peer, routes, closing, watcher } = self;
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_EVERY);
        let service = service_fn(move |request| answer(routes.clone(), request, member.open(), closing.clone()));
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%peer, %error, "a connection ended badly");
        }
    }
}

/// TLS on a new connection; `None` where there is no certificate, and where the client speaks plain HTTP, which is told so.
async fn shake_hands(mut stream: TcpStream, tls: &Certificate) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    // A TLS record begins with its type, 22 for a handshake; HTTP with the name of a method.
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        stream.write_all(NOT_TLS).await?;
        stream.shutdown().await?;
        return Ok(None);
    }
    let Some(acceptor) = tls.acceptor() else { return Ok(None) };
    acceptor.accept(stream).await.map(Some)
}

/// Answers a request.
async fn answer<R: Routes>(
    routes: R,
    request: Request<Incoming>,
    open: Open,
    closing: Arc<AtomicBool>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_http1 = request.version() < Version::HTTP_2;
    let mut response = routes.answer(request, open).await?;
    if is_http1 && closing.load(Ordering::Relaxed) {
        // Whoever asks again does so on a connection to a replica that stays.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}
