//! Serves admission reviews over TLS, and health and metrics in plain HTTP, until SIGTERM or SIGINT.

mod bind;
mod connection_limit;
mod connections;
mod handlers;
mod tasks;
mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::client_within;
use arc_swap::ArcSwap;
use contract::error_chain::display_chain;
use inject::Settings;
use kube::Config;
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
use crate::args::{NativeSidecars, SelfSignedArgs, WebhookArgs};
use crate::certificates::files::{self, WatchedFiles};
use crate::certificates::rotator::{CertRotator, system_clock};
use crate::certificates::serving_cert::ServingCert;
use crate::certificates::store::KubeStore;
use crate::metrics::Metrics;
use crate::server_version::{self, Error as VersionError};

/// Limits the connections for admission reviews. An API server opens one for each unfinished review, of the 600 requests of any kind that
/// it has under way at most by default.
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
/// Limits how long a connection to the API server may be silent. A watch may be silent until it ends, after 290 s.
const READ_TIMEOUT: Duration = Duration::from_mins(5);
/// Pause after the API server did not say its version.
const VERSION_RETRY_DELAY: Duration = Duration::from_secs(2);

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
pub(crate) fn run(arguments: WebhookArgs) -> Result<(), Error> {
    arguments.log.start();
    let runtime = new_runtime()?;
    let result = runtime.block_on(serve(arguments));
    // Does not wait for threads that are still busy.
    runtime.shutdown_background();
    result
}

fn new_runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

async fn serve(arguments: WebhookArgs) -> Result<(), Error> {
    let metrics = Arc::new(Metrics::new());
    let (stop, stopped) = watch::channel(());
    let mut tasks = Tasks::default();
    let tls = load_tls(&arguments, &metrics, &mut tasks, &stopped).await?;
    let (ready, closing) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut shutdown = std::pin::pin!(shutdown_signal()?);

    let readiness = readiness(ready.clone(), tls.clone());
    let counted = metrics.clone();
    let (health_address, health) = health(arguments.health_listen, readiness, move || counted.text(), stopped.clone())?;
    let runtime = new_runtime()?;
    tasks.supervise("the health listener", spawn_blocking(move || runtime.block_on(health)));

    let (socket, address) = listen(arguments.listen)?;
    let native_sidecars = arguments.native_sidecars;
    let settings = arguments.shim.settings(native_sidecars != NativeSidecars::Disabled);
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let starting = async {
        if native_sidecars == NativeSidecars::Auto {
            let asking = tokio::spawn(ask_for_native_sidecars(settings.clone()));
            if timeout(VERSION_TIMEOUT, asking).await.is_err() {
                tracing::warn!(
                    "serving with native sidecars, until the API server says its version; set --native-sidecars"
                );
            }
        }
        tls.wait_loaded().await;
    };
    tokio::select! {
        () = starting => {}
        error = tasks.first_end() => return Err(error),
        () = &mut shutdown => return Ok(()),
    };
    let limiter = ConnectionLimiter::new(ADMISSION_CONNECTION_LIMIT, REQUEST_MEMORY_LIMIT, metrics.evictions());
    let handler = AdmissionHandler { settings, metrics };
    let admission = Listener { socket, tls: Some(tls), handler, closing: closing.clone(), limiter };
    tasks.supervise("the admission listener", tokio::spawn(admission.run(stopped)));
    ready.store(true, Ordering::Relaxed);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), admission = %address, health = %health_address, "serving");
    tokio::select! {
        error = tasks.first_end() => return Err(error),
        () = &mut shutdown => {}
    }
    tracing::info!("stopping: unfinished requests are answered first");
    ready.store(false, Ordering::Relaxed);
    closing.store(true, Ordering::Relaxed);
    // New connections are still accepted, until clients use other replicas.
    sleep(arguments.drain_delay).await;
    drop(stop);
    tasks.all_ends().await;
    tracing::info!("stopped");
    Ok(())
}

/// Serves `/healthz`, `/readyz` and `/metrics` in plain HTTP, until the sender of `shutdown` is dropped. `/readyz` succeeds unless
/// `readiness` returns a reason.
pub fn health(
    address: SocketAddr,
    readiness: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    metrics: impl Fn() -> String + Send + Sync + 'static,
    shutdown: watch::Receiver<()>,
) -> Result<(SocketAddr, impl Future<Output = io::Result<()>>), Error> {
    let (socket, address) = listen(address)?;
    let limiter = ConnectionLimiter::new(HEALTH_CONNECTION_LIMIT, 0, Counter::default());
    let handler = HealthHandler::new(readiness, metrics);
    let listener = Listener { socket, tls: None, handler, closing: Arc::default(), limiter };
    Ok((address, listener.run(shutdown)))
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
    arguments: &WebhookArgs,
    metrics: &Arc<Metrics>,
    tasks: &mut Tasks,
    stopped: &watch::Receiver<()>,
) -> Result<Arc<TlsReloader>, Error> {
    let client_ca = arguments.client_ca.clone();
    let client_ca =
        client_ca.map(|file| WatchedFiles::load([("--client-ca", file)], ClientCa::from_pem)).transpose()?;
    let (client_ca_file, client_ca) = client_ca.unzip();
    let tls = Arc::new(TlsReloader::new(metrics.clone(), client_ca));
    if let Some(file) = client_ca_file {
        let tls = tls.clone();
        let reload = file.reload_on_change(move |client_ca| tls.reload_client_ca(client_ca), metrics.clone());
        tasks.spawn("the reader of --client-ca", reload, stopped.clone());
    }
    let target = tls.clone();
    if let (Some(cert), Some(key)) = (&arguments.tls_cert, &arguments.tls_key) {
        let files = [("--tls-cert", cert.clone()), ("--tls-key", key.clone())];
        let (files, loaded) = WatchedFiles::load(files, LoadedCert::from_pem)?;
        tls.reload(loaded);
        let reload = files.reload_on_change(move |loaded| target.reload(loaded), metrics.clone());
        tasks.spawn("the reader of --tls-cert", reload, stopped.clone());
    } else {
        let SelfSignedArgs { namespace, secret, service, configurations, certificate_validity } =
            &*arguments.self_signed_args;
        let config = Config::infer().await.map_err(kube::Error::InferConfig);
        let client = config.and_then(|config| client_within(config, READ_TIMEOUT));
        let client = client.map_err(|error| Error::Cluster(Box::new(error)))?;
        let namespace = namespace.as_deref().unwrap_or(client.default_namespace());
        let store = KubeStore::new(&client, namespace, secret, configurations);
        let name = format!("{service}.{namespace}.svc");
        let rotator = CertRotator::new(store, system_clock(), &name, *certificate_validity);
        let rotate = rotator.run(move |cert: &ServingCert| target.reload_stored(cert));
        tasks.spawn("the certificate rotator", rotate, stopped.clone());
    }
    Ok(tls)
}

/// Asks the API server until it answers whether it has native sidecars, and sets that. Pods do not complete if they are
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
            Err(error @ VersionError::NoCluster(_)) => {
                let error = display_chain(&error);
                tracing::warn!(error, "the API server's version is not known; set --native-sidecars");
                return;
            }
            Err(error) => tracing::info!(error = display_chain(&error), "the API server's version is not known yet"),
        }
        sleep(VERSION_RETRY_DELAY).await;
    }
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
