//! Carries out what the state machines decide. One task owns them all; effects run as tasks of their own and report events.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use cni::protocol::{Request, Response, Sandbox};
use futures::FutureExt;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::scan::{Decision, LocalState, NodeScan, decide};
use super::{Action, Event, State, UPGRADE_RETRY_DELAY};
use crate::error::{Error, Result};
use crate::status::pod_of;

const MAINTAIN_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Starts, upgrades and removes proxies. Each future may be dropped at any point, and the call made again.
pub trait Proxies: Send + Sync + 'static {
    /// Starts the sandbox' proxy, and returns when it is ready.
    fn start(&self, sandbox: &Sandbox) -> impl Future<Output = Result<()>> + Send;
    /// Renews the proxy's certificate, checks the proxy, undoes an upgrade that failed, and retires its predecessors, until the proxy
    /// has ended.
    fn maintain(&self, sandbox: &Sandbox) -> impl Future<Output = ()> + Send;
    /// Starts the sandbox' next proxy, and returns when that serves in place of the present one.
    fn upgrade(&self, sandbox: &Sandbox) -> impl Future<Output = Result<()>> + Send;
    /// Returns the sandboxes that have files; those whose proxy has served as they are to be adopted.
    fn on_disk(&self) -> BTreeMap<String, Option<Sandbox>>;
    /// Ends the proxy, and removes its containers and files.
    fn remove(&self, id: &str) -> impl Future<Output = Result<()>> + Send;
}

enum Message {
    Request(Request, oneshot::Sender<Response>),
    Scan(NodeScan),
    Installed(Result<()>),
    /// An event of an effect, with the effect's number.
    Effect(String, u64, Event),
}

/// Sends requests to the task that owns the state machines.
#[derive(Clone)]
pub struct Supervisor {
    messages: mpsc::UnboundedSender<Message>,
    /// Notified when a scan is wanted at once.
    pub scan_wanted: Arc<Notify>,
}

impl Supervisor {
    /// Starts the task, which ends with the last handle. `report` gets each event, with the sandbox and its state before.
    pub fn spawn(proxies: Arc<impl Proxies>, report: impl Fn(&Sandbox, State, &Event) + Send + 'static) -> Self {
        let (messages, mut inbox) = mpsc::unbounded_channel();
        let mut machines = Machines {
            proxies,
            report,
            messages: messages.downgrade(),
            entries: HashMap::new(),
            installed: Err(Error::new("the plugin is not installed yet")),
            has_scanned: false,
            has_upgraded: false,
        };
        tokio::spawn(async move {
            while let Some(message) = inbox.recv().await {
                machines.handle(message);
            }
        });
        Self { messages, scan_wanted: Arc::default() }
    }

    /// Carries out a request of the plugin.
    pub async fn request(&self, request: Request) -> Response {
        if request == Request::Collect {
            self.scan_wanted.notify_one();
        }
        let (sender, receiver) = oneshot::channel();
        let sent = self.messages.send(Message::Request(request, sender));
        let response = if sent.is_ok() { receiver.await.ok() } else { None };
        response.unwrap_or_else(|| Response { error: Some("the agent is stopping".into()) })
    }

    /// Adopts the proxies of an earlier agent, upgrades those that are outdated, and removes those of sandboxes that are over.
    pub fn reconcile(&self, scan: NodeScan) {
        // It is lost only where the agent ends.
        let _ = self.messages.send(Message::Scan(scan));
    }

    /// Reports if the plugin and its configuration are installed: without them no pod of the class starts.
    pub fn installed(&self, result: Result<()>) {
        let _ = self.messages.send(Message::Installed(result));
    }

    /// Returns once the task has ended, as by a panic.
    pub async fn stopped(&self) {
        self.messages.closed().await;
    }
}

#[derive(Default)]
struct Entry {
    state: State,
    /// Has only the id if a DEL came first, until there is an ADD.
    sandbox: Sandbox,
    adds: Vec<oneshot::Sender<Response>>,
    deletes: Vec<oneshot::Sender<Response>>,
    effect: u64,
    task: Option<JoinHandle<()>>,
    /// The reason why its last upgrade failed.
    upgrade_failure: Option<Error>,
}

struct Machines<P, R> {
    proxies: Arc<P>,
    report: R,
    messages: mpsc::WeakUnboundedSender<Message>,
    entries: HashMap<String, Entry>,
    /// Has the last result of installing the plugin.
    installed: Result<()>,
    /// True once the outdated proxies are known.
    has_scanned: bool,
    /// True once a proxy was upgraded.
    has_upgraded: bool,
}

impl<P: Proxies, R: Fn(&Sandbox, State, &Event)> Machines<P, R> {
    fn handle(&mut self, message: Message) {
        match message {
            Message::Request(Request::Add(sandbox), reply) => {
                let id = sandbox.id.clone();
                let entry = self.entry((*sandbox).clone());
                entry.sandbox = *sandbox;
                entry.adds.push(reply);
                self.apply(&id, &Event::Add);
            }
            Message::Request(Request::Delete { id }, reply) => {
                self.entry(Sandbox { id: id.clone(), ..Sandbox::default() }).deletes.push(reply);
                self.apply(&id, &Event::Delete);
            }
            Message::Request(Request::Check { id }, reply) => {
                let state = self.entries.get(&id).map(|entry| entry.state);
                let is_ready = matches!(state, Some(State::Ready { .. } | State::Upgrading { .. }));
                let error = (!is_ready).then(|| "the proxy is not ready".to_owned());
                let _ = reply.send(Response { error });
            }
            Message::Request(Request::Status | Request::Collect, reply) => {
                let _ = reply.send(Response { error: None });
            }
            Message::Request(Request::Rollout, reply) => {
                let _ = reply.send(Response { error: self.reason_to_stop_rollout() });
            }
            Message::Scan(scan) => self.reconcile(&scan),
            Message::Installed(result) => self.installed = result,
            // Ignore late events of an effect that was replaced.
            Message::Effect(id, effect, event) => {
                if self.entries.get(&id).is_some_and(|entry| entry.effect == effect) {
                    self.apply(&id, &event);
                }
            }
        }
    }

    /// Files are read here, since a sandbox may have been removed after the scan.
    fn reconcile(&mut self, scan: &NodeScan) {
        let mut on_disk = self.proxies.on_disk();
        for (id, status) in &scan.statuses {
            let left = on_disk.remove(id).flatten();
            let local = match (self.entries.get(id), &left) {
                (Some(entry), _) => LocalState::Managed(entry.state),
                (None, Some(_)) => LocalState::Served,
                (None, None) => LocalState::Unserved,
            };
            match (decide(local, *status), left) {
                (Decision::Adopt, Some(sandbox)) => {
                    self.entry(sandbox);
                    self.apply(id, &Event::Adopted);
                    if scan.outdated.contains(id) {
                        self.apply(id, &Event::Outdated);
                    }
                }
                (Decision::Remove, _) => {
                    self.entry(Sandbox { id: id.clone(), ..Sandbox::default() });
                    self.apply(id, &Event::Delete);
                }
                _ => {}
            }
        }
        self.has_scanned = true;
    }

    /// Returns why the rollout must not go on to the next node; `None` if it may.
    fn reason_to_stop_rollout(&self) -> Option<String> {
        if let Err(reason) = &self.installed {
            return Some(reason.to_string());
        }
        if !self.has_scanned {
            return Some("the agent has not scanned the node's proxies yet".to_owned());
        }
        let failures =
            self.entries.values().filter_map(|entry| Some((&entry.sandbox, entry.upgrade_failure.as_ref()?)));
        if let Some((sandbox, reason)) = failures.clone().min_by_key(|(sandbox, _)| &sandbox.id) {
            let others = failures.count() - 1;
            return Some(format!("the proxy of {} cannot be upgraded ({others} others): {reason}", pod_of(sandbox)));
        }
        let is_upgrading = |entry: &Entry| matches!(entry.state, State::Upgrading { .. });
        let waits = !self.has_upgraded && self.entries.values().any(is_upgrading);
        waits.then(|| "no proxy of this node is upgraded yet".to_owned())
    }

    fn entry(&mut self, sandbox: Sandbox) -> &mut Entry {
        self.entries.entry(sandbox.id.clone()).or_insert_with(|| Entry { sandbox, ..Entry::default() })
    }

    fn apply(&mut self, id: &str, event: &Event) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let before = entry.state;
        let (state, actions) = before.apply(event);
        (self.report)(&entry.sandbox, before, event);
        tracing::info!(sandbox = id, ?event, from = ?before, to = ?state, "sandbox");
        entry.state = state;
        match event {
            Event::Upgraded => {
                entry.upgrade_failure = None;
                self.has_upgraded = true;
            }
            Event::UpgradeFailed(reason) => entry.upgrade_failure = Some(reason.clone()),
            // It runs the image of the failed upgrade now.
            Event::Started => entry.upgrade_failure = None,
            _ => {}
        }
        for action in actions {
            self.carry_out(id, action);
        }
        if self.entries.get(id).is_some_and(|entry| entry.state == State::Absent) {
            self.entries.remove(id);
        }
    }

    fn carry_out(&mut self, id: &str, action: Action) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        match action {
            Action::RespondAdd(result) => respond(&mut entry.adds, &result),
            Action::RespondDelete => respond(&mut entry.deletes, &Ok(())),
            effect => {
                entry.effect += 1;
                let (number, before, sandbox) = (entry.effect, entry.task.take(), entry.sandbox.clone());
                let (proxies, messages, id) = (Arc::clone(&self.proxies), self.messages.clone(), id.to_owned());
                entry.task = Some(tokio::spawn(async move {
                    if let Some(task) = before {
                        task.abort();
                        let _ = task.await;
                    }
                    let report = move |event| {
                        if let Some(messages) = messages.upgrade() {
                            let _ = messages.send(Message::Effect(id.clone(), number, event));
                        }
                    };
                    run(&effect, &*proxies, &sandbox, report).await;
                }));
            }
        }
    }
}

/// Runs an effect to its end, and reports what happens.
async fn run(effect: &Action, proxies: &impl Proxies, sandbox: &Sandbox, report: impl Fn(Event)) {
    match effect {
        Action::Start(delay) => {
            sleep(*delay).await;
            match caught(proxies.start(sandbox)).await {
                Ok(()) => report(Event::Started),
                Err(reason) => return report(Event::StartFailed(reason)),
            }
            report(maintain(proxies, sandbox).await);
        }
        Action::Watch => report(maintain(proxies, sandbox).await),
        Action::Upgrade => {
            let retry_delay = match caught(proxies.upgrade(sandbox)).await {
                Ok(()) => {
                    report(Event::Upgraded);
                    Duration::MAX
                }
                Err(reason) => {
                    report(Event::UpgradeFailed(reason));
                    UPGRADE_RETRY_DELAY
                }
            };
            report(timeout(retry_delay, maintain(proxies, sandbox)).await.unwrap_or(Event::Outdated));
        }
        Action::Remove(delay) => {
            sleep(*delay).await;
            match caught(proxies.remove(&sandbox.id)).await {
                Ok(()) => report(Event::Removed),
                Err(error) => {
                    tracing::warn!(sandbox = sandbox.id, %error, "could not remove a proxy");
                    report(Event::RemoveFailed);
                }
            }
        }
        Action::RespondAdd(_) | Action::RespondDelete => {}
    }
}

/// Maintains a proxy until it has ended, and returns how long it has served.
async fn maintain(proxies: &impl Proxies, sandbox: &Sandbox) -> Event {
    let began = Instant::now();
    // The proxy may still serve; `maintain` returns at once if it does not.
    while let Err(error) = caught(proxies.maintain(sandbox).map(Ok)).await {
        tracing::warn!(sandbox = sandbox.id, %error, "could not maintain a proxy");
        sleep(MAINTAIN_RETRY_DELAY).await;
    }
    Event::Exited(began.elapsed())
}

/// Makes a panic an error: otherwise nothing would happen to the sandbox any more.
async fn caught(effect: impl Future<Output = Result<()>>) -> Result<()> {
    let result = AssertUnwindSafe(effect).catch_unwind().await;
    result.unwrap_or_else(|_| Err(Error::new("the agent has panicked; its log says where")))
}

fn respond(waiting: &mut Vec<oneshot::Sender<Response>>, result: &Result<()>) {
    for reply in waiting.drain(..) {
        // The plugin may have gone, and asks again.
        let _ = reply.send(Response { error: result.as_ref().err().map(ToString::to_string) });
    }
}
