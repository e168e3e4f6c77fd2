//! Serves admission reviews over TLS, and health and metrics in plain HTTP, until SIGTERM or SIGINT.

mod bind;
mod connection_limit;
mod connections;
mod handlers;
mod tasks;
mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use contract::error_chain::display_chain;
use inject::Settings;
use kube::Client;
use prometheus_client::metrics::counter::Counter;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use self::connection_limit::{ConnectionLimiter, UNCOUNTED_MEMORY_LIMIT};
use self::connections::Listener;
use self::handlers::{AdmissionHandler, BODY_LIMIT, HealthHandler};
use self::tasks::Tasks;
use self::tls::{ClientCa, LoadedCert, TlsReloader};
use crate::certificates::files::{self, WatchedFiles};
use crate::certificates::rotator::{CertRotator, CertificateTarget, system_clock};
use crate::certificates::serving_cert::ServingCert;
use crate::certificates::store::KubeStore;
use crate::metrics::Metrics;
use crate::server_version::{self, Error as VersionError};

/// Limits the connections for admission reviews. An API server opens one for each unfinished review, 200 at most by default, so
/// three API servers open 300 to each of two replicas.
const ADMISSION_CONNECTION_LIMIT: usize = 300;
/// Limits the connections for health and metrics.
const HEALTH_CONNECTION_LIMIT: usize = 100;
/// Limits the memory of all bodies and responses that are not small, in bytes. With the small ones and the connections, the
/// process stays below 128 MiB, the limit of its Deployment; bench/README.md has the figures.
const REQUEST_MEMORY_LIMIT: usize = 16 << 20;
const _: () = assert!(REQUEST_MEMORY_LIMIT >= 4 * BODY_LIMIT);
const _: () = assert!(REQUEST_MEMORY_LIMIT + ADMISSION_CONNECTION_LIMIT * UNCOUNTED_MEMORY_LIMIT < 32 << 20);

/// Limits the time for which serving waits for the API server's version. Then native sidecars are assumed, until it is known.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after the API server did not say its version.
const VERSION_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Holds the server's options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address of admission reviews.
    pub listen: SocketAddr,
    /// Address of health and metrics.
    pub health_listen: SocketAddr,
    /// Source of the certificate.
    pub certificate: Source,
    /// File of the CA whose clients alone are admitted; `None` admits every client.
    pub client_ca: Option<PathBuf>,
    /// Time in which new connections are still accepted after SIGTERM, until clients use other replicas.
    pub drain_delay: Duration,
    /// Settings of decisions.
    pub settings: Settings,
    /// If set, the API server is asked whether it has native sidecars, and its answer overrides the settings.
    pub ask_for_native_sidecars: bool,
}

/// Names the source of the certificate.
#[derive(Debug, Clone)]
pub enum Source {
    /// Two files in PEM, which another program renews.
    Files {
        /// Certificate and its chain.
        cert: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// Issued here, stored in a Secret, and trusted by the webhook configurations.
    SelfSigned(SelfSigned),
}

/// Holds the names and times of self-signed certificates.
#[derive(Debug, Clone)]
pub struct SelfSigned {
    /// Namespace of Secret and Service; `None` means that of the pod.
    pub namespace: Option<String>,
    /// Name of the Secret.
    pub secret: String,
    /// Name of the Service that the API server calls.
    pub service: String,
    /// Names of the webhook configurations.
    pub configurations: Vec<String>,
    /// Validity of a certificate.
    pub valid_for: Duration,
}

/// Reports that the server could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate, its key, or the client CA cannot be used.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// There is no cluster to store a certificate in.
    #[error("--self-signed stores its certificate in the cluster, and no cluster is configured")]
    Cluster(#[source] Box<kube::Error>),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Address of the option.
        address: SocketAddr,
        /// Cause.
        source: io::Error,
    },
    /// Creating the runtime or a signal handler failed.
    #[error("cannot start")]
    Start(#[from] io::Error),
    /// A task ended that has to run for as long as the server.
    #[error("{task} ended unexpectedly ({reason}); the server stops, so that it is restarted")]
    TaskEnded {
        /// Name of the task.
        task: &'static str,
        /// Error or panic of the task.
        reason: String,
    },
}

/// Serves until SIGTERM or SIGINT, then finishes the requests that have begun. Reviews have one thread, and health has another,
/// so that a long decision does not fail a liveness probe.
pub fn run(options: Options) -> Result<(), Error> {
    let runtime = new_runtime()?;
    let result = runtime.block_on(serve(options));
    // Does not wait for threads that are still busy.
    runtime.shutdown_background();
    result
}

fn new_runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

async fn serve(options: Options) -> Result<(), Error> {
    let metrics = Arc::new(Metrics::new());
    let (stop, stopped) = watch::channel(());
    let mut tasks = Tasks::default();
    let tls = load_tls(options.certificate, options.client_ca, &metrics, &mut tasks, &stopped).await?;
    let (ready, closing) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut shutdown = std::pin::pin!(shutdown_signal()?);

    let readiness = readiness(ready.clone(), tls.clone());
    let counted = metrics.clone();
    let (health_address, health) = listen_health(options.health_listen, readiness, move || counted.text())?;
    let health = health.run(stopped.clone());
    let runtime = new_runtime()?;
    tasks.supervise("the health listener", spawn_blocking(move || runtime.block_on(health)));

    let (socket, address) = listen(options.listen)?;
    let settings = Arc::new(ArcSwap::from_pointee(options.settings));
    let mut asking = options.ask_for_native_sidecars.then(|| tokio::spawn(ask_for_native_sidecars(settings.clone())));
    let starting = async {
        if let Some(asking) = &mut asking
            && timeout(VERSION_TIMEOUT, asking).await.is_err()
        {
            tracing::warn!(
                "serving with native sidecars, until the API server says its version; set --native-sidecars"
            );
        }
        tls.wait_loaded().await;
    };
    tokio::select! {
        () = starting => {}
        error = tasks.first_end() => return Err(error),
        () = &mut shutdown => return Ok(()),
    };
    let limiter = ConnectionLimiter::new(ADMISSION_CONNECTION_LIMIT, REQUEST_MEMORY_LIMIT, metrics.evictions());
    let admission = Listener::plain(socket, AdmissionHandler::new(settings, metrics), limiter);
    let admission = admission.tls(tls.clone(), closing.clone()).run(stopped);
    tasks.supervise("the admission listener", tokio::spawn(admission));
    ready.store(true, Ordering::Relaxed);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), admission = %address, health = %health_address, "serving");
    tokio::select! {
        error = tasks.first_end() => return Err(error),
        () = &mut shutdown => {}
    }
    drain(&ready, &closing, options.drain_delay).await;
    drop(stop);
    tasks.all_ends().await;
    tracing::info!("stopped");
    Ok(())
}

/// Serves `/healthz`, `/readyz` and `/metrics` in plain HTTP, for as long as the future is polled. `/readyz` succeeds unless
/// `readiness` returns a reason.
pub fn health(
    address: SocketAddr,
    readiness: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    metrics: impl Fn() -> String + Send + Sync + 'static,
) -> Result<(SocketAddr, impl Future<Output = io::Result<()>>), Error> {
    let (address, listener) = listen_health(address, readiness, metrics)?;
    let (stop, stopped) = watch::channel(());
    let until_dropped = async move {
        let _stop = stop;
        listener.run(stopped).await
    };
    Ok((address, until_dropped))
}

fn listen_health(
    address: SocketAddr,
    readiness: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    metrics: impl Fn() -> String + Send + Sync + 'static,
) -> Result<(SocketAddr, Listener<HealthHandler>), Error> {
    let (socket, address) = listen(address)?;
    let limiter = ConnectionLimiter::new(HEALTH_CONNECTION_LIMIT, 0, Counter::default());
    Ok((address, Listener::plain(socket, HealthHandler::new(readiness, metrics), limiter)))
}

/// Returns the webhook's readiness: the flag is set and the certificate is valid.
fn readiness(ready: Arc<AtomicBool>, tls: Arc<TlsReloader>) -> impl Fn() -> Result<(), String> {
    move || {
        if !ready.load(Ordering::Relaxed) {
            return Err("starting, or stopping".to_owned());
        }
        tls.not_ready_reason().map_or(Ok(()), |reason| Err(reason.to_string()))
    }
}

/// Loads the certificate, now or as soon as there is one, and keeps it and the client CA up to date.
async fn load_tls(
    source: Source,
    client_ca: Option<PathBuf>,
    metrics: &Arc<Metrics>,
    tasks: &mut Tasks,
    stopped: &watch::Receiver<()>,
) -> Result<Arc<TlsReloader>, Error> {
    let client_ca =
        client_ca.map(|file| WatchedFiles::load([("--client-ca", file)], ClientCa::from_pem)).transpose()?;
    let (client_ca_file, client_ca) = client_ca.unzip();
    let tls = Arc::new(TlsReloader::new(metrics.clone(), client_ca));
    if let Some(file) = client_ca_file {
        let tls = tls.clone();
        let reload = file.reload_on_change(move |client_ca| tls.reload_client_ca(client_ca), metrics.clone());
        tasks.spawn("the reader of --client-ca", reload, stopped.clone());
    }
    match source {
        Source::Files { cert, key } => {
            let files = [("--tls-cert", cert), ("--tls-key", key)];
            let (files, loaded) = WatchedFiles::load(files, LoadedCert::from_pem)?;
            tls.reload(loaded);
            let target = tls.clone();
            let reload = files.reload_on_change(move |loaded| target.reload(loaded), metrics.clone());
            tasks.spawn("the reader of --tls-cert", reload, stopped.clone());
        }
        Source::SelfSigned(options) => {
            let client = Client::try_default().await.map_err(|error| Error::Cluster(Box::new(error)))?;
            let namespace = options.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
            let store = KubeStore::new(&client, &namespace, &options.secret, &options.configurations);
            let name = format!("{}.{namespace}.svc", options.service);
            let rotator = CertRotator::new(store, system_clock(), &name, options.valid_for);
            let target = TlsTarget { tls: tls.clone(), metrics: metrics.clone() };
            tasks.spawn("the certificate rotator", rotator.run(target), stopped.clone());
        }
    }
    Ok(tls)
}

/// Serves the certificate of a [`CertRotator`].
struct TlsTarget {
    tls: Arc<TlsReloader>,
    metrics: Arc<Metrics>,
}

impl CertificateTarget for TlsTarget {
    fn serve(&self, cert: &ServingCert) -> bool {
        match LoadedCert::from_pem([cert.cert.as_bytes(), cert.key.as_bytes()]) {
            Ok(loaded) => {
                self.tls.reload(loaded);
                true
            }
            Err((_, reason)) => {
                let reason = display_chain(&reason);
                tracing::warn!(reason, "the Secret's certificate cannot be served; the one before stays in use");
                self.record_failure();
                false
            }
        }
    }

    fn record_failure(&self) {
        self.metrics.certificate_failed();
    }
}

/// Sets what the API server says of native sidecars. It is asked until it answers: pods do not complete if native sidecars are
/// assumed and missing.
async fn ask_for_native_sidecars(settings: Arc<ArcSwap<Settings>>) {
    loop {
        match server_version::ask().await {
            Ok(version) => {
                let native_sidecars = version.has_native_sidecars();
                settings.store(Arc::new(Settings { native_sidecars, ..Settings::clone(&settings.load()) }));
                tracing::info!(%version, native_sidecars, "asked the API server for its version");
                return;
            }
            Err(error) => {
                if matches!(error, VersionError::NoCluster(_)) {
                    let error = display_chain(&error);
                    tracing::warn!(error, "the API server's version is not known; set --native-sidecars");
                    return;
                }
                tracing::info!(error = display_chain(&error), "the API server's version is not known yet");
            }
        }
        sleep(VERSION_RETRY_DELAY).await;
    }
}

/// Marks the replica not ready, closes connections after their next response, and waits for the drain delay, in which new
/// connections are still accepted.
async fn drain(ready: &AtomicBool, closing: &AtomicBool, delay: Duration) {
    tracing::info!("stopping: unfinished requests are answered first");
    ready.store(false, Ordering::Relaxed);
    closing.store(true, Ordering::Relaxed);
    sleep(delay).await;
}

/// Opens a listening socket, and returns it with its address.
fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let listener = bind::bind(address).and_then(|socket| Ok((socket.local_addr()?, socket)));
    let (address, socket) = listener.map_err(|source| Error::Listen { address, source })?;
    Ok((socket, address))
}

/// Catches SIGTERM and SIGINT from now on, and waits for one of them.
pub fn shutdown_signal() -> io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
