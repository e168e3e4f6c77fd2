//! The table of the state machine, laws over random histories, and the supervisor with proxies that are not there.

use std::time::Duration;

use cni::protocol::{Request, Response, Sandbox};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::sync::{mpsc, watch};

use super::*;

fn start() -> Action {
    Action::Start(Duration::ZERO)
}

fn remove() -> Action {
    Action::Remove(Duration::ZERO)
}

fn error(reason: &str) -> Action {
    Action::RespondAdd(Err(Error::new(reason)))
}

#[test]
fn each_event_in_each_state_leads_to_its_actions() {
    use Event::{Add, Adopted, Delete, Exited, Outdated, RemoveFailed, Removed, StartFailed, Started};
    use Event::{UpgradeFailed, Upgraded};
    use State::{Absent, Ready, Removing, Restarting, Starting, Upgrading};
    let failed = || StartFailed(Error::new("why"));
    let ok = || Action::RespondAdd(Ok(()));
    let deleted = || error("the sandbox was deleted");
    let again = |failures, seconds| (Restarting { failures }, vec![Action::Start(Duration::from_secs(seconds))]);
    let cases = [
        (Absent, Add, (Starting, vec![start()])),
        (Absent, Delete, (Removing, vec![remove()])),
        (Absent, Adopted, (Ready, vec![Action::Watch])),
        (Starting, Add, (Starting, vec![])),
        (Starting, Started, (Ready, vec![ok()])),
        (Starting, failed(), (Removing, vec![error("why"), remove()])),
        (Starting, Exited, (Removing, vec![error("the proxy has ended"), remove()])),
        (Starting, Delete, (Removing, vec![deleted(), remove()])),
        (Ready, Add, (Ready, vec![ok()])),
        (Ready, Delete, (Removing, vec![deleted(), remove()])),
        (Ready, Exited, again(0, 1)),
        (Ready, Outdated, (Upgrading, vec![Action::Upgrade])),
        (Upgrading, Add, (Upgrading, vec![ok()])),
        (Upgrading, Upgraded, (Ready, vec![])),
        (Upgrading, UpgradeFailed(Error::new("why")), (Ready, vec![])),
        (Upgrading, Delete, (Removing, vec![deleted(), remove()])),
        (Restarting { failures: 0 }, failed(), again(1, 2)),
        (Restarting { failures: 90 }, failed(), again(91, 60)),
        (Restarting { failures: 3 }, Add, (Restarting { failures: 3 }, vec![])),
        (Restarting { failures: 3 }, Started, (Ready, vec![ok()])),
        (Restarting { failures: 3 }, Delete, (Removing, vec![deleted(), remove()])),
        (Removing, Add, (Removing, vec![error("the sandbox is being removed")])),
        (Removing, Delete, (Removing, vec![])),
        (Removing, RemoveFailed, (Removing, vec![Action::Remove(Duration::from_secs(1))])),
        (Removing, Removed, (Absent, vec![Action::RespondDelete])),
    ];
    for (state, event, expected) in cases {
        assert_eq!(state.apply(&event), expected, "{state:?}, {event:?}");
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Add),
        Just(Event::Delete),
        Just(Event::Adopted),
        Just(Event::Outdated),
        Just(Event::Upgraded),
        Just(Event::UpgradeFailed(Error::new("why"))),
        Just(Event::Started),
        Just(Event::StartFailed(Error::new("why"))),
        Just(Event::Exited),
        Just(Event::Removed),
        Just(Event::RemoveFailed),
    ]
}

proptest! {
    /// What was begun is removed: a sandbox is absent only if nothing was started since the last removal that succeeded.
    #[test]
    fn a_started_proxy_is_removed_before_its_sandbox_is_forgotten(events in vec(any_event(), 0..40)) {
        let (mut state, mut may_be_there) = (State::Absent, false);
        for event in events {
            let (next, actions) = state.apply(&event);
            if event == Event::Removed && state == State::Removing {
                may_be_there = false;
            }
            may_be_there |= actions.iter().any(|action| matches!(action, Action::Start(_) | Action::Watch));
            state = next;
            prop_assert!(state != State::Absent || !may_be_there);
        }
    }

    /// Whatever came before, DEL and a removal that works lead to nothing; and whoever waits for a proxy gets a response.
    #[test]
    fn a_deletion_ends_every_history_and_leaves_no_one_waiting(events in vec(any_event(), 0..40)) {
        let (mut state, mut adds) = (State::Absent, 0);
        for event in events.into_iter().chain([Event::Delete, Event::Removed]) {
            adds += usize::from(event == Event::Add);
            let (next, actions) = state.apply(&event);
            if actions.iter().any(|action| matches!(action, Action::RespondAdd(_))) {
                adds = 0;
            }
            state = next;
        }
        prop_assert_eq!(state, State::Absent);
        prop_assert_eq!(adds, 0);
    }
}

/// Proxies that start when they are let, and count what they were asked for.
#[derive(Clone)]
struct Fake {
    starts: watch::Receiver<Option<Result<()>>>,
    ended: watch::Receiver<bool>,
    asked: mpsc::UnboundedSender<&'static str>,
}

impl Proxies for Fake {
    async fn start(&self, _: &Sandbox) -> Result<()> {
        self.asked.send("start").unwrap();
        let mut starts = self.starts.clone();
        let result = starts.wait_for(Option::is_some).await.unwrap().clone();
        result.unwrap()
    }

    async fn maintain(&self, _: &Sandbox) {
        self.asked.send("maintain").unwrap();
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    async fn upgrade(&self, _: &Sandbox) -> Result<()> {
        self.asked.send("upgrade").unwrap();
        Err(Error::new("the next one does not start"))
    }

    async fn remove(&self, _: &str) -> Result<()> {
        self.asked.send("remove").unwrap();
        Ok(())
    }
}

struct Fixture {
    supervisor: Supervisor,
    start: watch::Sender<Option<Result<()>>>,
    end: watch::Sender<bool>,
    asked: mpsc::UnboundedReceiver<&'static str>,
}

fn fixture() -> Fixture {
    let ((start, starts), (end, ended)) = (watch::channel(None), watch::channel(false));
    let (sender, asked) = mpsc::unbounded_channel();
    Fixture { supervisor: Supervisor::spawn(Fake { starts, ended, asked: sender }, |_| {}), start, end, asked }
}

fn sandbox() -> Sandbox {
    Sandbox {
        id: "abc".into(),
        netns: "/run/netns/x".into(),
        namespace: "team".into(),
        name: "job".into(),
        uid: "u1".into(),
        addresses: Vec::new(),
        cgroup_path: String::new(),
    }
}

fn add() -> Request {
    Request::Add(sandbox())
}

fn delete() -> Request {
    Request::Delete { id: "abc".into() }
}

const DONE: Response = Response { error: None };

#[tokio::test]
async fn add_waits_until_the_proxy_is_ready_and_a_second_one_starts_no_second_proxy() {
    let mut fixture = fixture();
    let supervisor = fixture.supervisor.clone();
    let first = tokio::spawn(async move { supervisor.request(add()).await });
    assert_eq!(fixture.asked.recv().await, Some("start"));
    let supervisor = fixture.supervisor.clone();
    let second = tokio::spawn(async move { supervisor.request(add()).await });
    let not_ready = fixture.supervisor.request(Request::Check { id: "abc".into() }).await;
    assert!(not_ready.error.is_some() && !first.is_finished());
    fixture.start.send_replace(Some(Ok(())));
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (DONE, DONE));
    assert_eq!(fixture.asked.recv().await, Some("maintain"));
}

#[tokio::test]
async fn a_deletion_stops_a_start_that_is_under_way() {
    let mut fixture = fixture();
    let supervisor = fixture.supervisor.clone();
    let added = tokio::spawn(async move { supervisor.request(add()).await });
    assert_eq!(fixture.asked.recv().await, Some("start"));
    assert_eq!(fixture.supervisor.request(delete()).await, DONE);
    assert_eq!(added.await.unwrap().error.as_deref(), Some("the sandbox was deleted"));
    assert_eq!(fixture.asked.recv().await, Some("remove"));
}

#[tokio::test]
async fn what_a_failed_start_left_is_removed() {
    let mut fixture = fixture();
    fixture.start.send_replace(Some(Err(Error::new("no certificate"))));
    assert_eq!(fixture.supervisor.request(add()).await.error.as_deref(), Some("no certificate"));
    assert_eq!(fixture.asked.recv().await, Some("start"));
    assert_eq!(fixture.asked.recv().await, Some("remove"));
}

#[tokio::test(start_paused = true)]
async fn an_adopted_proxy_that_ends_is_started_again() {
    let mut fixture = fixture();
    fixture.start.send_replace(Some(Ok(())));
    fixture.supervisor.adopt(sandbox(), false);
    assert_eq!(fixture.asked.recv().await, Some("maintain"));
    fixture.end.send_replace(true);
    assert_eq!(fixture.asked.recv().await, Some("start"));
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_fails_leaves_the_proxy_that_serves_under_watch() {
    let mut fixture = fixture();
    fixture.start.send_replace(Some(Ok(())));
    fixture.supervisor.adopt(sandbox(), true);
    while fixture.asked.recv().await != Some("upgrade") {}
    assert_eq!(fixture.asked.recv().await, Some("maintain"));
    assert_eq!(fixture.supervisor.request(Request::Check { id: "abc".into() }).await, DONE);
    fixture.end.send_replace(true);
    assert_eq!(fixture.asked.recv().await, Some("start"));
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_failed_is_tried_again() {
    let mut fixture = fixture();
    fixture.supervisor.adopt(sandbox(), true);
    for _ in 0..3 {
        while fixture.asked.recv().await != Some("upgrade") {}
        assert_eq!(fixture.asked.recv().await, Some("maintain"));
    }
}
