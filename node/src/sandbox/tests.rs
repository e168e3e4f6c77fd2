//! The table of the state machine, and properties of random histories.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

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
fn event_in_state_leads_to_actions() {
    use Event::{Add, Adopted, Delete, Exited, Outdated, RemoveFailed, Removed, StartFailed, Started};
    use Event::{UpgradeFailed, Upgraded};
    use State::{Absent, Ready, Removing, Restarting, Starting, Upgrading};
    let failed = || StartFailed(Error::new("why"));
    let ok = || Action::RespondAdd(Ok(()));
    let deleted = || error("the sandbox was deleted");
    let again = |failures, seconds| (Restarting { failures }, vec![Action::Start(Duration::from_secs(seconds))]);
    let exited = |minutes| Exited(Duration::from_mins(minutes));
    let ready = || Ready { failures: 0 };
    let wanted = || Removing { then_start: true };
    let upgrading = || Upgrading { failures: 0 };
    let cases = [
        (Absent, Add, (Starting, vec![start()])),
        (Absent, Delete, (REMOVING, vec![remove()])),
        (Absent, Adopted, (ready(), vec![Action::Watch])),
        (Starting, Add, (Starting, vec![])),
        (Starting, Started, (ready(), vec![ok()])),
        (Starting, failed(), (REMOVING, vec![error("why"), remove()])),
        (Starting, exited(0), (REMOVING, vec![error("the proxy has ended"), remove()])),
        (Starting, Delete, (REMOVING, vec![deleted(), remove()])),
        (ready(), Add, (ready(), vec![ok()])),
        (ready(), Delete, (REMOVING, vec![deleted(), remove()])),
        (ready(), exited(0), again(0, 1)),
        (Ready { failures: 3 }, exited(9), again(3, 8)),
        (Ready { failures: 3 }, exited(10), again(0, 1)),
        (Ready { failures: 3 }, Outdated, (Upgrading { failures: 3 }, vec![Action::Upgrade])),
        (upgrading(), Add, (upgrading(), vec![ok()])),
        (Upgrading { failures: 3 }, Upgraded, (Ready { failures: 3 }, vec![])),
        (upgrading(), UpgradeFailed(Error::new("why")), (ready(), vec![])),
        (upgrading(), Delete, (REMOVING, vec![deleted(), remove()])),
        (Restarting { failures: 0 }, failed(), again(1, 2)),
        (Restarting { failures: 90 }, failed(), again(91, 60)),
        (Restarting { failures: 3 }, Add, (Restarting { failures: 3 }, vec![])),
        (Restarting { failures: 3 }, Started, (Ready { failures: 4 }, vec![ok()])),
        (Restarting { failures: 3 }, Delete, (REMOVING, vec![deleted(), remove()])),
        (REMOVING, Add, (wanted(), vec![])),
        (REMOVING, Delete, (REMOVING, vec![])),
        (wanted(), Add, (wanted(), vec![])),
        (wanted(), Delete, (REMOVING, vec![deleted()])),
        (wanted(), RemoveFailed, (wanted(), vec![Action::Remove(Duration::from_secs(1))])),
        (wanted(), Removed, (Starting, vec![Action::RespondDelete, start()])),
        (REMOVING, RemoveFailed, (REMOVING, vec![Action::Remove(Duration::from_secs(1))])),
        (REMOVING, Removed, (Absent, vec![Action::RespondDelete])),
    ];
    for (state, event, expected) in cases {
        assert_eq!(state.apply(&event), expected, "{state:?}, {event:?}");
    }
}

#[test]
fn users_are_told_of_their_proxies() {
    let why = || Error::new("why");
    let [ready, restarting, upgrading] =
        [State::Ready { failures: 0 }, State::Restarting { failures: 1 }, State::Upgrading { failures: 0 }];
    for (state, event, expected) in [
        (
            ready,
            Event::Exited(Duration::from_secs(3)),
            Some("Warning ProxyEnded: the proxy has ended after 3 s, and is started again"),
        ),
        (
            restarting,
            Event::StartFailed(why()),
            Some("Warning ProxyNotStarted: the proxy is not started again yet: why"),
        ),
        (restarting, Event::Started, None),
        (State::Starting, Event::StartFailed(why()), None),
        (upgrading, Event::Upgraded, Some("Normal ProxyUpgraded: the proxy is upgraded")),
        (
            upgrading,
            Event::UpgradeFailed(why()),
            Some("Warning ProxyNotUpgraded: the proxy is not upgraded, and goes on: why"),
        ),
        (ready, Event::Delete, None),
    ] {
        let line = |EventNote { reason, is_warning, text }| {
            format!("{} {reason}: {text}", if is_warning { "Warning" } else { "Normal" })
        };
        assert_eq!(state.note(&event).map(line).as_deref(), expected, "{state:?} {event:?}");
    }
}

#[test]
fn counted_events_have_the_listed_labels() {
    let labels: Vec<_> = events().iter().filter_map(Event::label).collect();
    assert_eq!(labels, Event::LABELS);
}

/// Returns all events.
fn events() -> [Event; 11] {
    [
        Event::Add,
        Event::Delete,
        Event::Adopted,
        Event::Outdated,
        Event::Started,
        Event::StartFailed(Error::new("why")),
        Event::Upgraded,
        Event::UpgradeFailed(Error::new("why")),
        Event::Exited(Duration::from_secs(1)),
        Event::Removed,
        Event::RemoveFailed,
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop::sample::select(events().to_vec())
}

proptest! {
    /// A sandbox is absent only if nothing was started since the last removal that succeeded.
    #[test]
    fn started_proxy_is_removed_before_sandbox_is_absent(events in vec(any_event(), 0..40)) {
        let (mut state, mut may_be_there) = (State::Absent, false);
        for event in events {
            let (next, actions) = state.apply(&event);
            if event == Event::Removed && matches!(state, State::Removing { .. }) {
                may_be_there = false;
            }
            may_be_there |= actions.iter().any(|action| matches!(action, Action::Start(_) | Action::Watch));
            state = next;
            prop_assert!(state != State::Absent || !may_be_there);
        }
    }

    /// A proxy that never serves for ten minutes is not restarted sooner than before.
    #[test]
    fn delay_of_ending_proxy_never_shrinks(events in vec(any_event(), 0..40)) {
        let (mut state, mut longest) = (State::Absent, Duration::ZERO);
        for event in events {
            let (next, actions) = state.apply(&event);
            for action in actions {
                if let Action::Start(delay) = action {
                    prop_assert!(delay >= longest);
                    longest = delay;
                }
            }
            if matches!(next, State::Absent | State::Removing { .. }) {
                longest = Duration::ZERO;
            }
            state = next;
        }
    }

    /// After any history, DEL and a removal lead to an absent sandbox, and each waiting ADD gets a response.
    #[test]
    fn deletion_ends_any_history_with_responses(events in vec(any_event(), 0..40)) {
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
