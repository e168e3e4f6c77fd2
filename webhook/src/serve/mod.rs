//! Listening: admission reviews over TLS, health and metrics in plain HTTP, until SIGTERM or SIGINT.

mod connections;
mod routes;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use self::connections::Listener;
use self::routes::{Admission, Health};
use self::tls::Certificate;
use crate::inject::Settings;
use crate::metrics::Metrics;

/// How the server runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where admission reviews are served.
    pub listen: SocketAddr,
    /// Where health is served.
    pub health_listen: SocketAddr,
    /// The certificate and its chain, in PEM.
    pub tls_cert: PathBuf,
    /// The private key, in PEM.
    pub tls_key: PathBuf,
    /// What decisions go by.
    pub settings: Settings,
}

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The runtime or its signals are not to be had.
    #[error("cannot start")]
    Start(#[from] io::Error),
}

/// Serves until SIGTERM or SIGINT, then lets open requests finish.
pub fn run(options: Options) -> Result<(), Error> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(options))
}

async fn serve(options: Options) -> Result<(), Error> {
    let certificate = Arc::new(Certificate::read(&options.tls_cert, &options.tls_key)?);
    let metrics = Arc::new(Metrics::new());
    let (stop, stopped) = watch::channel(());
    let ready = Arc::new(AtomicBool::new(true));
    let admission = Admission::new(options.settings, metrics.clone());
    let health = Health::new(ready.clone(), certificate.clone(), metrics.clone());
    let admission = Listener::new(listen(options.listen).await?, Some(certificate.clone()), admission);
    let health = Listener::new(listen(options.health_listen).await?, None, health);
    let following = tokio::spawn(certificate.follow(metrics));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        admission = %admission.address()?,
        health = %health.address()?,
        "serving"
    );
    let health = tokio::spawn(health.run(stopped.clone()));
    let admission = tokio::spawn(admission.run(stopped));
    until_told_to_stop().await?;
    tracing::info!("stopping: open requests are finished first");
    ready.store(false, Ordering::Relaxed);
    drop(stop);
    following.abort();
    let (admission, health) = (admission.await, health.await);
    if let Err(error) = admission.and(health) {
        tracing::error!(%error, "a listener ended badly");
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

async fn until_told_to_stop() -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
