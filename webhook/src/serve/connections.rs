//! One listening socket: connections accepted, given TLS where it is wanted, served, and drained at the end.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

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
/// Pause after a connection could not be accepted, out of file descriptors for one.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

pub(super) struct Listener<R> {
    socket: TcpListener,
    tls: Option<Arc<Certificate>>,
    routes: R,
}

impl<R: Routes> Listener<R> {
    pub(super) fn new(socket: TcpListener, tls: Option<Arc<Certificate>>, routes: R) -> Self {
        Self { socket, tls, routes }
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
                    let (tls, routes, watcher) = (self.tls.clone(), self.routes.clone(), graceful.watcher());
                    tokio::spawn(connection(stream, peer, tls, routes, watcher));
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

async fn connection<R: Routes>(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<Certificate>>,
    routes: R,
    watcher: Watcher,
) {
    let Some(tls) = tls else {
        return serve(stream, peer, routes, watcher).await;
    };
    match timeout(HANDSHAKE_WITHIN, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, peer, routes, watcher).await,
        Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS came about"),
        Err(_) => tracing::debug!(%peer, "no TLS came about within {HANDSHAKE_WITHIN:?}"),
    }
}

async fn serve<R: Routes>(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    peer: SocketAddr,
    routes: R,
    watcher: Watcher,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    builder.http2().timer(TokioTimer::new());
    let service = service_fn(move |request| answer(routes.clone(), request));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%peer, %error, "a connection ended badly");
    }
}

fn answer<R: Routes>(
    routes: R,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send {
    routes.answer(request)
}
