//! Keeps the objects of every namespace that asks for them: one replica watches namespaces and acts, the others wait.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use api::events::{EventNote, publish};
use api::{client_within, describe_error};
use futures::StreamExt;
use inject::tenancy::desired::{DesiredTenancy, unknown_values};
use inject::tenancy::objects::labels;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::controller::{Action as Requeue, Error as RunError};
use kube::runtime::events::Reporter;
use kube::runtime::{Controller, watcher};
use kube::{Client, Config, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use webhook::serve;

use crate::args::ControllerArgs;
use crate::cluster::{self, Outcome};
use crate::election::Candidate;
use crate::metrics::{Reconciliation, TenancyMetrics};
use crate::plan::{Installation, Plan, invalid_value, plan};

/// Is the time between two checks of a namespace. The account may not watch the objects in it.
const RESYNC_INTERVAL: Duration = Duration::from_mins(10);
/// First delays of the next check, after a warning and after a failure. An API server learns of a new label or policy a
/// moment later, so a rejection is reported only if it repeats.
const REFUSED_INTERVAL: Duration = Duration::from_secs(5);
const FAILED_INTERVAL: Duration = Duration::from_secs(1);
/// Limits these delays, which double with each warning or failure in a row.
const BACKOFF_MAX: Duration = Duration::from_mins(5);
/// Limits one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Is the time of one watch of namespaces, after which the next one begins.
const WATCH_SECONDS: u32 = 50;
/// Limits how long a connection to the API server may be silent. A watch may be silent until it ends.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// The reason of the event about a write that the API server has rejected.
const REFUSED: &str = "Refused";
/// Publishes an unchanged notice again after this time. Events expire after an hour by default.
const REPEAT_INTERVAL: Duration = Duration::from_mins(30);
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
    let config = Config::infer()
        .await
        .map_err(kube::Error::InferConfig)
        .and_then(|config| client_within(config, ANSWER_TIMEOUT));
    let client = config.context("no cluster")?;
    let metrics = Arc::new(TenancyMetrics::new());
    let is_ready = Arc::new(AtomicBool::new(false));
    let shutdown = serve::shutdown_signal().context("cannot start")?;
    let (text, ready) = (metrics.clone(), is_ready.clone());
    let readiness =
        move || if ready.load(Ordering::Relaxed) { Ok(()) } else { Err("the Lease was not read yet".to_owned()) };
    let (_stop, stopped) = watch::channel(());
    let (address, health) = serve::health(arguments.health_listen, readiness, move || text.text(), stopped)?;
    let namespace = arguments.namespace.as_deref().unwrap_or(client.default_namespace()).to_owned();
    let leases = Api::namespaced(client.clone(), &namespace);
    let mut candidate = Candidate::new(leases, labels(&namespace), &arguments.lease, &arguments.identity);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), identity = arguments.identity, health = %address, "started");
    let installation = Installation { namespace, roles: arguments.roles.clone() };
    let worker = Worker { context: Context::new(client, installation, &arguments.identity, metrics) };
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
struct Worker {
    /// Kept when leadership changes.
    context: Arc<Context>,
}

impl Worker {
    /// Acts whenever this replica is the leader.
    async fn lead(&self, candidate: &mut Candidate, is_ready: &AtomicBool) -> Infallible {
        let metrics = &self.context.metrics;
        loop {
            candidate.acquire(|| is_ready.store(true, Ordering::Relaxed)).await;
            tracing::info!("this replica leads");
            metrics.set_leader(true);
            let reason = tokio::select! {
                () = self.watch() => "the watch of namespaces ended".to_owned(),
                reason = candidate.keep() => reason,
            };
            metrics.set_leader(false);
            self.context.last_checks().clear();
            tracing::warn!(reason, "this replica no longer leads");
        }
    }

    async fn watch(&self) {
        let namespaces: Api<NamespaceMeta> = Api::all(self.context.client.clone());
        let config = kube::runtime::controller::Config::default().concurrency(CONCURRENCY);
        let controller =
            Controller::new(namespaces, watcher::Config::default().timeout(WATCH_SECONDS)).with_config(config);
        let checks = controller.run(reconcile, back_off, self.context.clone());
        let after_each = checks.for_each(async |checked| match checked {
            // What has failed is tried again, and was logged.
            Ok(_) | Err(RunError::ReconcilerFailed(..)) => {}
            // It was deleted before its next check.
            Err(RunError::ObjectNotFound(namespace)) => self.context.forget(&namespace.name),
            Err(error) => tracing::warn!(error = describe_error(&error), "cannot list or watch namespaces yet"),
        });
        after_each.await;
    }
}

struct Context {
    client: Client,
    installation: Installation,
    reporter: Reporter,
    metrics: Arc<TenancyMetrics>,
    /// Holds the last check of each namespace.
    last_checks: Mutex<HashMap<String, LastCheck>>,
}

/// Remembers the last check of a namespace.
#[derive(Default)]
struct LastCheck {
    /// Counts the failures in a row.
    failures: u32,
    /// Counts the checks in a row that had warnings of these reasons.
    rejections: u32,
    reasons: BTreeSet<&'static str>,
    /// The published notices and their times. Published again on a change, and before the event expires.
    published: Vec<(EventNote, Instant)>,
}

/// Says why a check of a namespace is tried again.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("the API server has not answered within {CHECK_TIMEOUT:?}")]
    Unanswered,
}

/// Keeps the objects of a namespace, and reports and counts what was done.
async fn reconcile(namespace: Arc<NamespaceMeta>, context: Arc<Context>) -> Result<Requeue, CheckError> {
    let name = namespace.name_any();
    if namespace.metadata.deletion_timestamp.is_some() {
        context.forget(&name);
        return Ok(Requeue::await_change());
    }
    let checked = timeout(CHECK_TIMEOUT, check(&namespace, &name, &context)).await;
    checked.unwrap_or(Err(CheckError::Unanswered))
}

async fn check(namespace: &NamespaceMeta, name: &str, context: &Context) -> Result<Requeue, CheckError> {
    let Context { client, installation, .. } = context;
    let desired = DesiredTenancy::of(namespace.labels(), namespace.annotations());
    let observed = cluster::observe(client, installation, name, &desired).await?;
    let Plan { actions, mut notices } = plan(installation, name, &desired, &observed);
    let (mut changed, mut failed, mut kept) = (Vec::new(), None, Vec::new());
    for action in &actions {
        // Do not apply over an object that could not be deleted.
        if kept.contains(&action.kind()) {
            continue;
        }
        let outcome = cluster::execute(client, name, action).await;
        if !matches!(outcome, Ok(Outcome::Done | Outcome::Gone)) {
            kept.push(action.kind());
        }
        match outcome {
            Ok(Outcome::Done) => changed.push(action.to_string()),
            Ok(Outcome::Gone) => {}
            Ok(Outcome::Refused(reason)) => {
                notices.push(EventNote::warning(REFUSED, format!("not {action}: {reason}")));
            }
            Err(error) => {
                tracing::warn!(namespace = name, error = describe_error(&error), "not {action}");
                failed = failed.or(Some(error));
            }
        }
    }
    notices.extend(unknown_values(namespace.labels()).into_iter().map(invalid_value));
    let (rejections, due) = context.due_notices(name, &notices, failed.is_some());
    let published = context.report(namespace, &changed, due).await;
    context.record_published(name, published);
    if let Some(error) = failed {
        return Err(error.into());
    }
    let is_wanted = desired != DesiredTenancy::Nothing;
    let result = match (rejections, changed.is_empty()) {
        (1.., _) => Reconciliation::Refused,
        (0, false) => Reconciliation::Changed,
        (0, true) => Reconciliation::Unchanged,
    };
    context.metrics.checked(name, is_wanted, result);
    Ok(match (rejections, is_wanted) {
        (1.., _) => Requeue::requeue(pause_after(REFUSED_INTERVAL, rejections)),
        (0, true) => Requeue::requeue(RESYNC_INTERVAL),
        (0, false) => Requeue::await_change(),
    })
}

/// Returns the pause after a failure, which doubles with each in a row.
#[expect(clippy::needless_pass_by_value, reason = "as kube's controller passes them")]
fn back_off(namespace: Arc<NamespaceMeta>, error: &CheckError, context: Arc<Context>) -> Requeue {
    let name = namespace.name_any();
    let pause = {
        let mut last_checks = context.last_checks();
        let last = last_checks.entry(name.clone()).or_default();
        last.failures = last.failures.saturating_add(1);
        pause_after(FAILED_INTERVAL, last.failures)
    };
    let is_wanted = DesiredTenancy::of(namespace.labels(), namespace.annotations()) != DesiredTenancy::Nothing;
    context.metrics.checked(&name, is_wanted, Reconciliation::Failed);
    tracing::warn!(namespace = name, error = describe_error(error), ?pause, "cannot keep a tenant's objects yet");
    Requeue::requeue(pause)
}

fn pause_after(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(BACKOFF_MAX)
}

impl Context {
    fn new(client: Client, installation: Installation, identity: &str, metrics: Arc<TenancyMetrics>) -> Arc<Self> {
        let reporter = Reporter { controller: "istio-aux.io/tenancy".to_owned(), instance: Some(identity.to_owned()) };
        Arc::new(Self { client, installation, reporter, metrics, last_checks: Mutex::default() })
    }

    fn last_checks(&self) -> MutexGuard<'_, HashMap<String, LastCheck>> {
        self.last_checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, namespace: &str) {
        self.last_checks().remove(namespace);
        self.metrics.forget(namespace);
    }

    /// Returns the number of checks in a row with the same warnings, and the notices to publish.
    fn due_notices(&self, namespace: &str, notices: &[EventNote], has_failed: bool) -> (u32, Vec<EventNote>) {
        let mut last_checks = self.last_checks();
        if notices.is_empty() && !has_failed {
            last_checks.remove(namespace);
            return (0, Vec::new());
        }
        let last = last_checks.entry(namespace.to_owned()).or_default();
        if !has_failed {
            last.failures = 0;
        }
        let reasons: BTreeSet<_> =
            notices.iter().filter(|notice| notice.is_warning).map(|notice| notice.reason).collect();
        let before = if reasons == last.reasons { last.rejections } else { 0 };
        last.rejections = if reasons.is_empty() { 0 } else { before.saturating_add(1) };
        last.reasons = reasons;
        last.published.retain(|(published, at)| notices.contains(published) && at.elapsed() < REPEAT_INTERVAL);
        let is_first_rejection = |notice: &EventNote| notice.reason == REFUSED && last.rejections < 2;
        let is_published = |notice: &EventNote| last.published.iter().any(|(published, _)| published == notice);
        let due = notices.iter().filter(|notice| !is_first_rejection(notice) && !is_published(notice));
        (last.rejections, due.cloned().collect())
    }

    fn record_published(&self, namespace: &str, published: Vec<EventNote>) {
        if let Some(last) = self.last_checks().get_mut(namespace) {
            last.published.extend(published.into_iter().map(|notice| (notice, Instant::now())));
        }
    }

    /// Reports changes and notices in the log, and as events in the namespace, where its users see them. Returns the notices of which
    /// there is an event now.
    async fn report(&self, namespace: &NamespaceMeta, changed: &[String], notices: Vec<EventNote>) -> Vec<EventNote> {
        if !changed.is_empty() {
            let text = changed.join(", ");
            tracing::info!(namespace = namespace.name_any(), "{text}");
            self.publish(namespace, EventNote::normal("Reconciled", text)).await;
        }
        let mut published = Vec::new();
        for notice in notices {
            tracing::info!(namespace = namespace.name_any(), reason = notice.reason, "{}", notice.text);
            if self.publish(namespace, notice.clone()).await {
                published.push(notice);
            }
        }
        published
    }

    /// Creates an event. Returns true if it was recorded.
    async fn publish(&self, namespace: &NamespaceMeta, note: EventNote) -> bool {
        let name = namespace.name_any();
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some(name.clone()),
            // An event about a Namespace would else be in `default`, where a tenant sees nothing.
            namespace: Some(name.clone()),
            uid: namespace.uid(),
            ..ObjectReference::default()
        };
        let outcome = publish(&self.client, &self.reporter, "Reconcile", note, &regarding).await;
        if let Err(error) = &outcome {
            tracing::warn!(namespace = name, error = describe_error(error), "an event was not recorded");
        }
        outcome.is_ok()
    }
}

#[cfg(test)]
mod tests;
