//! Keeps the objects of every namespace that asks for them: one replica watches namespaces and acts, the others wait.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use api::describe_error;
use futures::StreamExt;
use inject::tenancy::wish::{Wish, unknown_values, wish};
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::controller::Action as Requeue;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::{Controller, watcher};
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use webhook::serve;

use crate::args::ControllerArgs;
use crate::cluster;
use crate::election::Candidate;
use crate::metrics::{Reconciliation, TenancyMetrics};
use crate::plan::{EventNote, Plan, plan};

/// Is the time between two checks of a namespace. The account may not watch the objects in it.
const RESYNC_INTERVAL: Duration = Duration::from_mins(10);
/// Delays the next check of a namespace after a warning.
const REFUSED_INTERVAL: Duration = Duration::from_mins(1);
/// Delays the next check after a failure, at first.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_mins(5);
/// Limits the namespaces that are checked at the same time.
const CONCURRENCY: u16 = 8;

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &ControllerArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let result = runtime.block_on(serve_until_stopped(arguments));
    runtime.shutdown_background();
    result
}

async fn serve_until_stopped(arguments: &ControllerArgs) -> Result<()> {
    let client = Client::try_default().await.context("no cluster")?;
    let metrics = Arc::new(TenancyMetrics::new());
    let is_ready = Arc::new(AtomicBool::new(false));
    let shutdown = serve::shutdown_signal().context("cannot start")?;
    let (text, ready) = (metrics.clone(), is_ready.clone());
    let readiness =
        move || if ready.load(Ordering::Relaxed) { Ok(()) } else { Err("the Lease was not read yet".to_owned()) };
    let (_stop, stopped) = watch::channel(());
    let (address, health) = serve::health(arguments.health_listen, readiness, move || text.text(), stopped)?;
    let namespace = arguments.namespace.as_deref().unwrap_or(client.default_namespace());
    let leases = Api::namespaced(client.clone(), namespace);
    let mut candidate = Candidate::new(leases, &arguments.lease, &arguments.identity);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), identity = arguments.identity, health = %address, "started");
    let worker = Worker { client: &client, identity: &arguments.identity, metrics: metrics.clone() };
    let result = tokio::select! {
        never = worker.lead(&mut candidate, &is_ready) => match never {},
        ended = health => Err(anyhow!("the health listener ended unexpectedly: {ended:?}")),
        () = shutdown => Ok(()),
    };
    candidate.release().await;
    result
}

/// Keeps only the metadata.
type NamespaceMeta = PartialObjectMeta<Namespace>;

/// Runs one replica.
struct Worker<'a> {
    client: &'a Client,
    identity: &'a str,
    metrics: Arc<TenancyMetrics>,
}

impl Worker<'_> {
    /// Acts whenever this replica is the leader.
    async fn lead(&self, candidate: &mut Candidate, is_ready: &AtomicBool) -> Infallible {
        loop {
            candidate.acquire(|| is_ready.store(true, Ordering::Relaxed)).await;
            tracing::info!("this replica acts");
            self.metrics.set_leader(true);
            let reason = tokio::select! {
                () = self.watch() => "the watch of namespaces ended".to_owned(),
                reason = candidate.keep() => reason,
            };
            self.metrics.set_leader(false);
            tracing::warn!(reason, "this replica no longer acts");
        }
    }

    async fn watch(&self) {
        let instance = Some(self.identity.to_owned());
        let reporter = Reporter { controller: "istio-aux.io/tenancy".to_owned(), instance };
        let context = Context {
            client: self.client.clone(),
            recorder: Recorder::new(self.client.clone(), reporter),
            metrics: self.metrics.clone(),
            failures: Mutex::default(),
        };
        let namespaces: Api<NamespaceMeta> = Api::all(self.client.clone());
        let config = kube::runtime::controller::Config::default().concurrency(CONCURRENCY);
        Controller::new(namespaces, watcher::Config::default())
            .with_config(config)
            .run(reconcile, back_off, Arc::new(context))
            .for_each(async |reconciled| {
                if let Err(error) = reconciled {
                    tracing::debug!(error = describe_error(&error), "a namespace will be checked again");
                }
            })
            .await;
    }
}

struct Context {
    client: Client,
    recorder: Recorder,
    metrics: Arc<TenancyMetrics>,
    /// Counts the failures in a row of each namespace.
    failures: Mutex<HashMap<String, u32>>,
}

/// Keeps the objects of a namespace, and reports and counts what was done.
async fn reconcile(namespace: Arc<NamespaceMeta>, context: Arc<Context>) -> kube::Result<Requeue> {
    let name = namespace.name_any();
    if namespace.metadata.deletion_timestamp.is_some() {
        context.forget(&name);
        return Ok(Requeue::await_change());
    }
    let wish = wish(namespace.labels(), namespace.annotations());
    let observed = cluster::observe(&context.client, &name, &wish).await?;
    let Plan { actions, mut notices } = plan(&name, &wish, &observed);
    let mut changed = Vec::new();
    for action in &actions {
        if cluster::execute(&context.client, &name, action).await? {
            changed.push(action.to_string());
        }
    }
    if !matches!(wish, Wish::Unclear(_)) {
        notices.extend(unknown_values(namespace.labels()).into_iter().map(EventNote::invalid_value));
    }
    context.report(&namespace, &changed, &notices).await;
    let (is_wanted, is_refused) = (wish != Wish::Nothing, notices.iter().any(|notice| notice.is_warning));
    context.forget(&name);
    if is_wanted || is_refused {
        context.metrics.set(&name, is_refused);
    }
    context.metrics.count(match (is_refused, changed.is_empty()) {
        (true, _) => Reconciliation::Refused,
        (false, false) => Reconciliation::Changed,
        (false, true) => Reconciliation::Unchanged,
    });
    Ok(match (is_refused, is_wanted) {
        (true, _) => Requeue::requeue(REFUSED_INTERVAL),
        (false, true) => Requeue::requeue(RESYNC_INTERVAL),
        (false, false) => Requeue::await_change(),
    })
}

/// Returns the pause after a failure, which doubles with each in a row.
#[expect(clippy::needless_pass_by_value, reason = "as kube's controller passes them")]
fn back_off(namespace: Arc<NamespaceMeta>, error: &kube::Error, context: Arc<Context>) -> Requeue {
    let name = namespace.name_any();
    let pause = {
        let mut failures = context.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(name.clone()).or_default();
        *count = count.saturating_add(1);
        pause_after(*count)
    };
    context.metrics.count(Reconciliation::Failed);
    tracing::warn!(namespace = name, error = describe_error(error), ?pause, "cannot keep a tenant's objects yet");
    Requeue::requeue(pause)
}

fn pause_after(failures: u32) -> Duration {
    BACKOFF_MIN.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(BACKOFF_MAX)
}

impl Context {
    fn forget(&self, namespace: &str) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(namespace);
        self.metrics.forget(namespace);
    }

    /// Reports changes and notices in the log, and as events in the namespace, where its users see them.
    async fn report(&self, namespace: &NamespaceMeta, changed: &[String], notices: &[EventNote]) {
        if !changed.is_empty() {
            let text = changed.join(", ");
            tracing::info!(namespace = namespace.name_any(), "{text}");
            self.publish(namespace, EventType::Normal, "Reconciled", text).await;
        }
        for notice in notices {
            let kind = if notice.is_warning { EventType::Warning } else { EventType::Normal };
            tracing::info!(namespace = namespace.name_any(), reason = notice.reason, "{}", notice.text);
            self.publish(namespace, kind, notice.reason, notice.text.clone()).await;
        }
    }

    async fn publish(&self, namespace: &NamespaceMeta, type_: EventType, reason: &str, note: String) {
        let name = namespace.name_any();
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some(name.clone()),
            // An event about a Namespace would else be in `default`, where a tenant sees nothing.
            namespace: Some(name.clone()),
            uid: namespace.uid(),
            ..ObjectReference::default()
        };
        if let Err(error) = self.recorder.publish(&event, &regarding).await {
            tracing::debug!(namespace = name, error = describe_error(&error), "an event was not recorded");
        }
    }
}

#[cfg(test)]
mod tests;
