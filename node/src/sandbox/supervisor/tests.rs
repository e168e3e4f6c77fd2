//! The supervisor with fake proxies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cni::protocol::{Request, Response, Sandbox};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, timeout};

use super::*;
use crate::sandbox::SandboxStatus;

/// Starts when it is let, and reports each call, and the end of each start.
#[derive(Clone)]
struct Fake {
    starts: watch::Receiver<Option<Result<()>>>,
    upgrades: watch::Receiver<Option<Result<()>>>,
    removals: watch::Receiver<Result<()>>,
    ended: watch::Receiver<bool>,
    panics: watch::Receiver<&'static str>,
    calls: mpsc::UnboundedSender<String>,
}

struct StartGuard(mpsc::UnboundedSender<String>);

impl Drop for StartGuard {
    fn drop(&mut self) {
        let _ = self.0.send("the start is over".into());
    }
}

impl Fake {
    fn report(&self, call: &str) {
        self.calls.send(call.into()).unwrap();
        assert_ne!(call, *self.panics.borrow(), "it is to panic");
    }
}

impl Proxies for Fake {
    async fn start(&self, sandbox: &Sandbox) -> Result<()> {
        self.report(&format!("start {}", sandbox.name));
        let _guard = StartGuard(self.calls.clone());
        let mut starts = self.starts.clone();
        let result = starts.wait_for(Option::is_some).await.unwrap().clone();
        result.unwrap()
    }

    async fn maintain(&self, _: &Sandbox) {
        self.report("maintain");
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    async fn upgrade(&self, _: &Sandbox) -> Result<()> {
        self.report("upgrade");
        self.upgrades.clone().wait_for(Option::is_some).await.unwrap().clone().unwrap()
    }

    fn on_disk(&self) -> BTreeMap<String, Option<Sandbox>> {
        let sandbox = |id: &str| Sandbox { id: id.into(), name: id.into(), ..Sandbox::default() };
        ["served", "over"]
            .map(|id| (id.into(), Some(sandbox(id))))
            .into_iter()
            .chain([("cut-off".into(), None)])
            .collect()
    }

    async fn remove(&self, id: &str) -> Result<()> {
        self.report(&format!("remove {id}"));
        self.removals.borrow().clone()
    }
}

struct Fixture {
    supervisor: Supervisor,
    start: watch::Sender<Option<Result<()>>>,
    upgrade: watch::Sender<Option<Result<()>>>,
    removal: watch::Sender<Result<()>>,
    end: watch::Sender<bool>,
    panic: watch::Sender<&'static str>,
    calls: mpsc::UnboundedReceiver<String>,
    counted: mpsc::UnboundedReceiver<&'static str>,
}

fn fixture() -> Fixture {
    let ((start, starts), (upgrade, upgrades)) = (watch::channel(None), watch::channel(None));
    let ((removal, removals), (end, ended)) = (watch::channel(Ok(())), watch::channel(false));
    let ((sender, calls), (count, counted)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let (panic, panics) = watch::channel("");
    let fake = Fake { starts, upgrades, removals, ended, panics, calls: sender };
    let supervisor = Supervisor::spawn(Arc::new(fake), move |_, _, event| {
        if let Some(label) = event.label() {
            count.send(label).unwrap();
        }
    });
    supervisor.installed(Ok(()));
    Fixture { supervisor, start, upgrade, removal, end, panic, calls, counted }
}

impl Fixture {
    fn request(&self, request: Request) -> JoinHandle<Response> {
        let supervisor = self.supervisor.clone();
        tokio::spawn(async move { supervisor.request(request).await })
    }

    /// Returns the next call. The tests' clock stands while anything runs, so waiting in vain takes no time.
    async fn call(&mut self) -> String {
        let call = timeout(Duration::from_hours(1), self.calls.recv()).await.expect("there is another call");
        call.expect("the supervisor runs")
    }

    async fn assert_calls(&mut self, expected: &[&str]) {
        for call in expected {
            assert_eq!(self.call().await, *call, "of {expected:?}");
        }
    }

    async fn next_call(&mut self, prefix: &str) -> String {
        loop {
            let call = self.call().await;
            if call.starts_with(prefix) {
                return call;
            }
        }
    }

    async fn next_calls(&mut self, prefix: &str, count: usize) {
        for _ in 0..count {
            self.next_call(prefix).await;
        }
    }

    async fn reason_to_stop_rollout(&self) -> String {
        self.supervisor.request(Request::Rollout).await.error.unwrap_or_default()
    }
}

/// Returns a scan; the outdated are among its sandboxes.
fn scan(statuses: &[(&str, SandboxStatus)], outdated: &[&str]) -> NodeScan {
    let statuses = statuses.iter().map(|(id, status)| ((*id).to_owned(), *status)).collect();
    NodeScan { statuses, outdated: outdated.iter().map(ToString::to_string).collect() }
}

fn sandbox(name: &str) -> Sandbox {
    Sandbox { id: "abc".into(), name: name.into(), ..Sandbox::default() }
}

fn add() -> Request {
    Request::Add(Box::new(sandbox("job")))
}

fn delete() -> Request {
    Request::Delete { id: "abc".into() }
}

fn check() -> Request {
    Request::Check { id: "abc".into() }
}

const DONE: Response = Response { error: None };

#[tokio::test(start_paused = true)]
async fn repeated_add_waits_for_one_proxy() {
    let mut fixture = fixture();
    let first = fixture.request(add());
    fixture.assert_calls(&["start job"]).await;
    let second = fixture.request(add());
    assert!(fixture.supervisor.request(check()).await.error.is_some() && !first.is_finished());
    fixture.start.send_replace(Some(Ok(())));
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (DONE, DONE));
    fixture.assert_calls(&["the start is over", "maintain"]).await;
}

#[tokio::test(start_paused = true)]
async fn deletion_stops_start_before_removal() {
    let mut fixture = fixture();
    let added = fixture.request(add());
    fixture.assert_calls(&["start job"]).await;
    assert_eq!(fixture.supervisor.request(delete()).await, DONE);
    assert_eq!(added.await.unwrap().error.as_deref(), Some("the sandbox was deleted"));
    fixture.assert_calls(&["the start is over", "remove abc"]).await;
}

#[tokio::test(start_paused = true)]
async fn panic_is_a_failure_that_is_tried_again() {
    let mut fixture = fixture();
    fixture.start.send_replace(Some(Ok(())));
    fixture.panic.send_replace("start job");
    let failed = timeout(Duration::from_hours(1), fixture.request(add())).await.expect("it is answered").unwrap();
    assert_eq!(failed.error.as_deref(), Some("the agent has panicked; its log says where"));
    fixture.panic.send_replace("maintain");
    assert_eq!(fixture.request(add()).await.unwrap(), DONE);
    fixture.next_calls("start job", 2).await;
    fixture.assert_calls(&["the start is over", "maintain", "maintain"]).await;
    fixture.panic.send_replace("upgrade");
    fixture.supervisor.reconcile(scan(&[("served", SandboxStatus::Alive)], &["served"]));
    fixture.next_calls("upgrade", 2).await;
    fixture.panic.send_replace("remove abc");
    let deleted = fixture.request(delete());
    fixture.next_calls("remove abc", 2).await;
    fixture.panic.send_replace("");
    assert_eq!(deleted.await.unwrap(), DONE);
}

#[tokio::test(start_paused = true)]
async fn add_during_removal_starts_after_it() {
    let mut fixture = fixture();
    fixture.start.send_replace(Some(Ok(())));
    let (deleted, added) = (fixture.request(delete()), fixture.request(add()));
    assert_eq!((deleted.await.unwrap(), added.await.unwrap()), (DONE, DONE));
    fixture.assert_calls(&["remove abc", "start job", "the start is over", "maintain"]).await;
}

#[tokio::test(start_paused = true)]
async fn scan_adopts_what_lives_and_removes_what_is_over() {
    let mut fixture = fixture();
    fixture.supervisor.reconcile(scan(&[("cut-off", SandboxStatus::Alive), ("served", SandboxStatus::Alive)], &[]));
    fixture.assert_calls(&["maintain"]).await;
    let starting = fixture.request(add());
    fixture.assert_calls(&["start job"]).await;
    // The runtime waits for abc; the others are over, whatever is left of them.
    fixture.supervisor.reconcile(scan(&["abc", "cut-off", "over", "served"].map(|id| (id, SandboxStatus::Gone)), &[]));
    let mut removed = Vec::new();
    for _ in 0..3 {
        removed.push(fixture.next_call("remove").await);
    }
    removed.sort();
    assert_eq!(removed, ["remove cut-off", "remove over", "remove served"]);
    fixture.start.send_replace(Some(Ok(())));
    assert_eq!(starting.await.unwrap(), DONE);
    assert_eq!(fixture.supervisor.request(check()).await, DONE);
}

#[tokio::test(start_paused = true)]
async fn gc_wakes_the_scan() {
    let fixture = fixture();
    assert_eq!(fixture.supervisor.request(Request::Status).await, DONE);
    assert!(timeout(Duration::ZERO, fixture.supervisor.scan_wanted.notified()).await.is_err());
    assert_eq!(fixture.supervisor.request(Request::Collect).await, DONE);
    fixture.supervisor.scan_wanted.notified().await;
}

#[tokio::test(start_paused = true)]
async fn deleted_sandbox_is_forgotten() {
    let mut fixture = fixture();
    fixture.start.send_replace(Some(Ok(())));
    for name in ["one", "other"] {
        assert_eq!(fixture.supervisor.request(Request::Add(Box::new(sandbox(name)))).await, DONE);
        assert_eq!(fixture.next_call("start ").await, format!("start {name}"));
        assert_eq!(fixture.supervisor.request(delete()).await, DONE);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_start_is_removed() {
    let mut fixture = fixture();
    fixture.start.send_replace(Some(Err(Error::new("no certificate"))));
    assert_eq!(fixture.supervisor.request(add()).await.error.as_deref(), Some("no certificate"));
    fixture.assert_calls(&["start job", "the start is over", "remove abc"]).await;
}

#[tokio::test(start_paused = true)]
async fn scan_adopts_again_what_was_deleted_before() {
    let mut fixture = fixture();
    assert_eq!(fixture.supervisor.request(Request::Delete { id: "served".into() }).await, DONE);
    fixture.assert_calls(&["remove served"]).await;
    fixture.supervisor.reconcile(scan(&[("served", SandboxStatus::Alive)], &[]));
    fixture.assert_calls(&["maintain"]).await;
}

#[tokio::test(start_paused = true)]
async fn failed_removal_is_tried_again_after_a_second() {
    let mut fixture = fixture();
    fixture.removal.send_modify(|result| *result = Err(Error::new("the runtime is away")));
    let deleted = fixture.request(delete());
    fixture.assert_calls(&["remove abc"]).await;
    let began = Instant::now();
    fixture.removal.send_modify(|result| *result = Ok(()));
    fixture.assert_calls(&["remove abc"]).await;
    assert_eq!((began.elapsed().as_secs(), deleted.await.unwrap()), (1, DONE));
}

#[tokio::test(start_paused = true)]
async fn ended_adopted_proxy_is_restarted() {
    let mut fixture = fixture();
    fixture.supervisor.reconcile(scan(&[("served", SandboxStatus::Alive)], &[]));
    fixture.assert_calls(&["maintain"]).await;
    fixture.end.send_replace(true);
    fixture.assert_calls(&["start served"]).await;
}

#[tokio::test(start_paused = true)]
async fn restart_delay_grows_until_a_proxy_has_served() {
    let mut fixture = fixture();
    fixture.start.send_replace(Some(Ok(())));
    fixture.end.send_replace(true);
    assert_eq!(fixture.supervisor.request(add()).await, DONE);
    fixture.next_call("start job").await;
    for seconds in [1, 2, 4] {
        let began = Instant::now();
        fixture.next_call("start job").await;
        assert_eq!(began.elapsed().as_secs(), seconds);
    }
    fixture.end.send_replace(false);
    fixture.next_call("start job").await;
    fixture.assert_calls(&["the start is over", "maintain"]).await;
    advance(Duration::from_mins(10)).await;
    let began = Instant::now();
    fixture.end.send_replace(true);
    fixture.next_call("start job").await;
    assert_eq!(began.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn upgraded_proxy_serves_and_is_restarted_as_before() {
    let mut fixture = fixture();
    fixture.supervisor.reconcile(scan(&[("served", SandboxStatus::Alive)], &["served"]));
    fixture.next_call("upgrade").await;
    let check = Request::Check { id: "served".into() };
    assert_eq!(fixture.supervisor.request(check).await, DONE, "its predecessor serves");
    fixture.upgrade.send_replace(Some(Ok(())));
    fixture.assert_calls(&["maintain"]).await;
    let upgraded_again = timeout(Duration::from_hours(1), fixture.calls.recv()).await;
    assert!(upgraded_again.is_err(), "{upgraded_again:?}");
    fixture.end.send_replace(true);
    fixture.assert_calls(&["start served"]).await;
}

#[tokio::test(start_paused = true)]
async fn failed_upgrade_keeps_proxy_and_is_retried() {
    let mut fixture = fixture();
    fixture.upgrade.send_replace(Some(Err(Error::new("the next one does not start"))));
    fixture.supervisor.reconcile(scan(&[("served", SandboxStatus::Alive)], &["served"]));
    fixture.next_call("upgrade").await;
    for _ in 0..2 {
        let began = Instant::now();
        fixture.assert_calls(&["maintain", "upgrade"]).await;
        assert_eq!(began.elapsed().as_secs(), 600);
    }
    fixture.assert_calls(&["maintain"]).await;
    assert_eq!(fixture.supervisor.request(Request::Check { id: "served".into() }).await, DONE);
    fixture.end.send_replace(true);
    fixture.assert_calls(&["start served"]).await;
    assert!(fixture.reason_to_stop_rollout().await.contains("the next one does not start"));
    fixture.end.send_replace(false);
    fixture.start.send_replace(Some(Ok(())));
    fixture.assert_calls(&["the start is over", "maintain"]).await;
    assert_eq!(fixture.reason_to_stop_rollout().await, "", "it was started from the next image");
}

#[tokio::test(start_paused = true)]
async fn rollout_goes_on_once_a_proxy_is_upgraded_and_while_none_fails() {
    let mut fixture = fixture();
    let ids = ["over", "served"];
    assert!(fixture.reason_to_stop_rollout().await.contains("not scanned"));
    fixture.supervisor.reconcile(scan(&ids.map(|id| (id, SandboxStatus::Alive)), &ids));
    fixture.next_calls("upgrade", 2).await;
    assert_eq!(fixture.reason_to_stop_rollout().await, "no proxy of this node is upgraded yet");
    fixture.upgrade.send_replace(Some(Err(Error::new("the next one does not start"))));
    fixture.next_calls("maintain", 2).await;
    let reason = fixture.reason_to_stop_rollout().await;
    assert!(reason.ends_with(" (1 others): the next one does not start"), "{reason}");
    // It is so while they are tried again.
    fixture.upgrade.send_replace(None);
    fixture.next_calls("upgrade", 2).await;
    assert_eq!(fixture.reason_to_stop_rollout().await, reason);
    fixture.upgrade.send_replace(Some(Ok(())));
    fixture.next_calls("maintain", 2).await;
    assert_eq!(fixture.reason_to_stop_rollout().await, "");
}

#[tokio::test(start_paused = true)]
async fn rollout_goes_on_where_nothing_is_to_be_upgraded() {
    let fixture = fixture();
    fixture.supervisor.reconcile(scan(&[("served", SandboxStatus::Alive)], &[]));
    assert_eq!(fixture.reason_to_stop_rollout().await, "");
}

#[tokio::test(start_paused = true)]
async fn rollout_stops_where_the_plugin_is_not_installed() {
    let fixture = fixture();
    fixture.supervisor.reconcile(scan(&[], &[]));
    fixture.supervisor.installed(Err(Error::new("/opt/cni/bin: no such directory")));
    assert_eq!(fixture.reason_to_stop_rollout().await, "/opt/cni/bin: no such directory");
    fixture.supervisor.installed(Ok(()));
    assert_eq!(fixture.reason_to_stop_rollout().await, "");
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_task_itself_is_reported() {
    let fixture = fixture();
    assert!(timeout(Duration::from_hours(1), fixture.supervisor.stopped()).await.is_err());
    // Nobody counts any more, which panics in the task.
    drop(fixture.counted);
    let deleted = fixture.supervisor.request(delete()).await;
    assert_eq!(deleted.error.as_deref(), Some("the agent is stopping"));
    timeout(Duration::from_hours(1), fixture.supervisor.stopped()).await.expect("the agent ends by it");
}

#[tokio::test(start_paused = true)]
async fn report_of_an_effect_that_was_stopped_is_dropped() {
    let mut fixture = fixture();
    fixture.supervisor.reconcile(scan(&[("served", SandboxStatus::Alive)], &["served"]));
    fixture.next_call("upgrade").await;
    // The deletion is taken first, and the report is there when it is.
    let deleted = fixture.request(Request::Delete { id: "served".into() });
    fixture.upgrade.send_replace(Some(Err(Error::new("the next one does not start"))));
    assert_eq!(deleted.await.unwrap(), DONE);
    assert_eq!(timeout(Duration::from_hours(1), fixture.counted.recv()).await, Ok(Some("removed")));
}

#[tokio::test(start_paused = true)]
async fn events_are_counted() {
    let mut fixture = fixture();
    fixture.start.send_replace(Some(Ok(())));
    assert_eq!(fixture.supervisor.request(add()).await, DONE);
    assert_eq!(fixture.supervisor.request(delete()).await, DONE);
    for label in ["started", "removed"] {
        assert_eq!(timeout(Duration::from_hours(1), fixture.counted.recv()).await, Ok(Some(label)));
    }
}
