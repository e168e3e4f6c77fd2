//! The table of the state machine, laws over random histories, and the supervisor with proxies that are not there.

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
    Action::RespondAdd(Err(reason.into()))
}

#[test]
fn each_event_in_each_state_leads_to_its_actions() {
    use Event::{Add, Adopted, Delete, Exited, RemoveFailed, Removed, StartFailed, Started};
    use State::{Absent, Ready, Removing, Restarting, Starting};
    let failed = || StartFailed("why".into());
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
        Just(Event::Started),
        Just(Event::StartFailed("why".into())),
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
