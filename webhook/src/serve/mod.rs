//! Listening: admission reviews over TLS, health and metrics in plain HTTP, until SIGTERM or SIGINT.

mod connections;
mod crowd;
mod routes;
pub(crate) mod tls;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use inject::Settings;
use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::connections::Listener;
use self::routes::{Admission, Health};
use self::tls::{Certificate, Served};
use crate::certificates::cluster::Kubernetes;
use crate::certificates::files::{self, Files};
use crate::certificates::keeper::{self, Keeper};
use crate::certificates::pair::Pair;
use crate::metrics::Metrics;
use crate::server_version::{self, Unknown};

/// Connections for admission at once. An API server has a handful; together with those for health they are fewer than the
/// file descriptors that a process has where nobody gave it more.
const ADMISSION_CONNECTIONS: usize = 800;
/// Connections for health and metrics at once.
const HEALTH_CONNECTIONS: usize = 100;

/// How long the API server is asked for its version before it is taken for a new one.
const VERSION_WITHIN: Duration = Duration::from_mins(1);
const VERSION_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// How the server runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where admission reviews are served.
    pub listen: SocketAddr,
    /// Where health is served.
    pub health_listen: SocketAddr,
    /// Where the certificate comes from.
    pub certificate: Source,
    /// How long new connections are still taken once the server is to stop, for those who have not heard of it.
    pub drain_delay: Duration,
    /// What decisions go by.
    pub settings: Settings,
    /// Whether the server has native sidecars is asked of it, and goes before what the settings say.
    pub ask_for_native_sidecars: bool,
}

/// Where the certificate comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// Two files in PEM, which somebody else renews.
    Files {
        /// The certificate and its chain.
        cert: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// Made here, kept in a Secret, and trusted by the webhook configuration.
    SelfSigned(SelfSigned),
}

/// Names and times of certificates of our own.
#[derive(Debug, Clone)]
pub struct SelfSigned {
    /// The namespace of Secret and Service; `None`: that of the pod.
    pub namespace: Option<String>,
    /// The Secret.
    pub secret: String,
    /// The Service that the API server calls.
    pub service: String,
    /// The webhook configuration.
    pub configuration: String,
    /// How long a certificate is valid.
    pub valid_for: Duration,
}

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// There is no cluster to keep a certificate in.
    #[error("--self-signed keeps its certificate in the cluster, and there is none to be reached")]
    Cluster(#[source] Box<kube::Error>),
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

/// Serves until SIGTERM or SIGINT, then lets open requests finish. On one thread: it answers more reviews in a second than any API
/// server sends, and threads would only hand them to each other.
pub fn run(options: Options) -> Result<(), Error> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(options))
}

async fn serve(options: Options) -> Result<(), Error> {
    let metrics = Arc::new(Metrics::new());
    let certificate = Arc::new(Certificate::none_yet(metrics.clone()));
    let keeping = keep(options.certificate, &certificate, &metrics).await?;
    let (stop, stopped) = watch::channel(());
    let (ready, closing) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut told = std::pin::pin!(until_told_to_stop()?);

    let health = Health::new(ready.clone(), certificate.clone(), metrics.clone());
    let health = Listener::plain(listen(options.health_listen).await?, health, HEALTH_CONNECTIONS);
    let (socket, health_address) = (listen(options.listen).await?, health.address()?);
    let health = tokio::spawn(health.run(stopped.clone()));

    let starting = async {
        let settings = settled(options.settings, options.ask_for_native_sidecars).await;
        certificate.until_offered().await;
        settings
    };
    tokio::select! {
        settings = starting => {
            let admission = Listener::plain(socket, Admission::new(settings, metrics), ADMISSION_CONNECTIONS);
            let admission = admission.tls(certificate.clone(), closing.clone());
            tracing::info!(
                version = env!("CARGO_PKG_VERSION"), admission = %admission.address()?, health = %health_address, "serving"
            );
            let admission = tokio::spawn(admission.run(stopped));
            ready.store(true, Ordering::Relaxed);
            told.await;
            drain(&ready, &closing, options.drain_delay).await;
            drop(stop);
            report(admission.await.and(health.await));
        }
        () = &mut told => drop(stop),
    }
    keeping.abort();
    Ok(())
}

/// Has a certificate served, now or as soon as there is one, and kept.
async fn keep(source: Source, certificate: &Arc<Certificate>, metrics: &Arc<Metrics>) -> Result<JoinHandle<()>, Error> {
    match source {
        Source::Files { cert, key } => {
            let (files, served) = Files::read(&cert, &key)?;
            certificate.offer(served);
            Ok(tokio::spawn(files.follow(certificate.clone(), metrics.clone())))
        }
        Source::SelfSigned(options) => {
            let client = Client::try_default().await.map_err(|error| Error::Cluster(Box::new(error)))?;
            let namespace = options.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
            let cluster = Kubernetes::new(&client, &namespace, &options.secret, &options.configuration);
            let name = format!("{}.{namespace}.svc", options.service);
            let keeper = Keeper::new(cluster, &name, options.valid_for);
            Ok(tokio::spawn(keeper.run(Offering { certificate: certificate.clone(), metrics: metrics.clone() })))
        }
    }
}

/// Offers connections what a [`Keeper`] keeps.
struct Offering {
    certificate: Arc<Certificate>,
    metrics: Arc<Metrics>,
}

impl keeper::Server for Offering {
    fn serve(&self, pair: &Pair) -> bool {
        match Served::new(pair.cert.as_bytes(), pair.key.as_bytes()) {
            Ok(served) => {
                self.certificate.offer(served);
                true
            }
            Err(unusable) => {
                tracing::warn!(?unusable, "what the Secret holds cannot be served; the certificate before is kept");
                self.failed();
                false
            }
        }
    }

    fn failed(&self) {
        self.metrics.certificate_failed();
    }
}

/// The settings, with what the API server says of itself. It is asked for a while: taken for newer than it is, pods would hang.
async fn settled(settings: Settings, ask: bool) -> Settings {
    if !ask {
        return settings;
    }
    let began = Instant::now();
    loop {
        match server_version::ask().await {
            Ok(version) => {
                let native_sidecars = version.has_native_sidecars();
                tracing::info!(%version, native_sidecars, "asked the API server for its version");
                return Settings { native_sidecars, ..settings };
            }
            Err(Unknown::NoAnswer(error)) if began.elapsed() < VERSION_WITHIN => {
                tracing::info!(error, "the API server's version is not known yet");
                sleep(VERSION_AGAIN_AFTER).await;
            }
            Err(Unknown::NoAnswer(error) | Unknown::NoCluster(error)) => {
                tracing::warn!(
                    error,
                    native_sidecars = settings.native_sidecars,
                    "the API server's version is not known; --native-sidecars=on or off says it"
                );
                return settings;
            }
        }
    }
}

/// Lets everybody hear that this replica goes, and then lets nobody in any more.
async fn drain(ready: &AtomicBool, closing: &AtomicBool, delay: Duration) {
    tracing::info!("stopping: open requests are finished first");
    ready.store(false, Ordering::Relaxed);
    closing.store(true, Ordering::Relaxed);
    sleep(delay).await;
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a listener ended badly");
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

/// Hears from now on whether the server is to stop.
fn until_told_to_stop() -> io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
