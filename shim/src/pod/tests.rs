//! The decisions as a table: what was observed, what the kubelet reports, and what is done.

use super::*;

const MAIN: &str = "main";
const PROXY: &str = "istio-proxy";

fn started(container: &str, id: &str) -> Event {
    Event::Started { container: container.to_owned(), id: id.to_owned(), pid: 7 }
}

fn ended(id: &str, code: impl Into<Option<i32>>) -> Event {
    Event::Ended { id: id.to_owned(), exit: Exit { code: code.into(), has_executed: true } }
}

/// Ended before it had executed its command.
fn failed_to_start(id: &str, code: impl Into<Option<i32>>) -> Event {
    Event::Ended { id: id.to_owned(), exit: Exit { code: code.into(), has_executed: false } }
}

fn pod(policy: RestartPolicy, events: &[Event]) -> PodState {
    let mut pod = PodState::new(&WatchArgs::new(vec![MAIN.to_owned()], policy));
    for event in events {
        pod.apply(event);
    }
    pod
}

#[test]
fn end_is_final_by_itself_only_where_the_policy_says_so() {
    use RestartPolicy::{Never, OnFailure};
    let cases = [
        ("never seen", Never, vec![], false),
        ("runs", Never, vec![started(MAIN, "a")], false),
        ("succeeded under Never", Never, vec![started(MAIN, "a"), ended("a", 0)], true),
        ("failed under Never", Never, vec![started(MAIN, "a"), ended("a", 1)], true),
        ("the highest code that no signal makes", Never, vec![started(MAIN, "a"), ended("a", 127)], true),
        ("a code that is neither", Never, vec![started(MAIN, "a"), ended("a", 128)], false),
        ("ended by the lowest signal", Never, vec![started(MAIN, "a"), ended("a", 129)], false),
        ("unknown code under Never", Never, vec![started(MAIN, "a"), ended("a", None)], true),
        (
            "killed under Never: its image may have been changed",
            Never,
            vec![started(MAIN, "a"), ended("a", 143)],
            false,
        ),
        ("the runtime failed under Never", Never, vec![started(MAIN, "a"), failed_to_start("a", 137)], false),
        ("unknown, and perhaps the runtime's", Never, vec![started(MAIN, "a"), failed_to_start("a", None)], false),
        ("short, succeeded", Never, vec![started(MAIN, "a"), failed_to_start("a", 0)], true),
        ("succeeded under OnFailure", OnFailure, vec![started(MAIN, "a"), ended("a", 0)], true),
        ("failed under OnFailure", OnFailure, vec![started(MAIN, "a"), ended("a", 1)], false),
        ("unknown code under OnFailure", OnFailure, vec![started(MAIN, "a"), ended("a", None)], false),
        ("runs again", OnFailure, vec![started(MAIN, "a"), ended("a", 1), started(MAIN, "b")], false),
        ("an end of an earlier start", Never, vec![started(MAIN, "a"), started(MAIN, "b"), ended("a", 0)], false),
        ("the proxy's end", Never, vec![started(MAIN, "a"), started(PROXY, "b"), ended("b", 0)], false),
        ("a container that is not the pod's", Never, vec![started("other", "a"), ended("a", 0)], false),
    ];
    for (name, policy, events, is_finished) in cases {
        let expected = is_finished.then_some(KnownBy::Exit);
        assert_eq!(pod(policy, &events).finished_by(), expected, "{name}");
    }
}

#[test]
fn only_the_kubelet_knows_if_a_restartable_container_has_finished() {
    let mut args = WatchArgs::new(vec![MAIN.to_owned()], RestartPolicy::OnFailure);
    args.may_restart.push(MAIN.to_owned());
    let mut pod = PodState::new(&args);
    pod.apply(&started(MAIN, "a"));
    pod.apply(&ended("a", 0));
    assert_eq!(pod.finished_by(), None);
    pod.set_reported(true);
    assert_eq!(pod.finished_by(), Some(KnownBy::Kubelet));
}

#[test]
fn report_counts_unless_an_awaited_container_is_seen_to_run() {
    use RestartPolicy::Never;
    let cases = [
        ("never seen", vec![], true),
        ("runs", vec![started(MAIN, "a")], false),
        ("killed", vec![started(MAIN, "a"), ended("a", 137)], true),
        ("the proxy runs", vec![started(PROXY, "a")], true),
    ];
    for (name, events, is_finished) in cases {
        let mut pod = pod(Never, &events);
        pod.set_reported(true);
        assert_eq!(pod.finished_by(), is_finished.then_some(KnownBy::Kubelet), "{name}");
        pod.set_reported(false);
        assert_eq!(pod.finished_by(), None, "{name}: the report is taken back");
    }
}

#[test]
fn report_is_too_old_while_any_awaited_container_runs() {
    let mut pod = PodState::new(&WatchArgs::new(vec![MAIN.to_owned(), "metrics".to_owned()], RestartPolicy::Never));
    pod.set_reported(true);
    for (event, is_finished) in [
        (started("metrics", "b"), false),
        (started(MAIN, "a"), false),
        (ended("a", 137), false),
        (ended("b", 137), true),
    ] {
        pod.apply(&event);
        assert_eq!(pod.finished_by(), is_finished.then_some(KnownBy::Kubelet), "{event:?}");
    }
}

#[test]
fn payload_has_started_once_any_awaited_container_has() {
    let mut pod = PodState::new(&WatchArgs::new(vec![MAIN.to_owned(), "metrics".to_owned()], RestartPolicy::Never));
    pod.apply(&started(PROXY, "p"));
    assert!(!pod.payload_has_started());
    pod.apply(&started("metrics", "b"));
    assert!(pod.payload_has_started());
    pod.apply(&ended("b", 0));
    assert!(pod.payload_has_started());
}

#[test]
fn proxy_may_run_until_its_last_start_is_seen_to_end() {
    let start = started(PROXY, "p");
    let cases = [
        ("never seen", vec![], true),
        ("runs", vec![start.clone()], true),
        ("has ended", vec![start.clone(), ended("p", 1)], false),
        ("runs again", vec![start, ended("p", 1), started(PROXY, "q")], true),
    ];
    for (name, events, may_run) in cases {
        assert_eq!(pod(RestartPolicy::OnFailure, &events).proxy_may_run(), may_run, "{name}");
    }
}

#[test]
fn proxy_that_starts_again_leaves_the_ends_before_to_the_kubelet() {
    let mut pod = PodState::new(&WatchArgs::new(vec![MAIN.to_owned(), "metrics".to_owned()], RestartPolicy::OnFailure));
    let all = [started(MAIN, "a"), started("metrics", "m"), started(PROXY, "p"), ended("a", 0), ended("p", 0)];
    for event in &all {
        pod.apply(event);
    }
    pod.apply(&started(PROXY, "q"));
    pod.apply(&ended("m", 0));
    assert_eq!(pod.finished_by(), None, "the kubelet may start main again");
    let mut reported = pod.clone();
    reported.set_reported(true);
    assert_eq!(reported.finished_by(), Some(KnownBy::Kubelet));
    pod.apply(&started(MAIN, "b"));
    assert_eq!(pod.finished_by(), None);
    pod.apply(&ended("b", 0));
    assert_eq!(pod.finished_by(), Some(KnownBy::Exit));
}

#[test]
fn proxy_that_starts_again_before_the_end_changes_nothing() {
    let all = [started(MAIN, "a"), started(PROXY, "p"), ended("p", 1), started(PROXY, "q"), ended("a", 0)];
    assert_eq!(pod(RestartPolicy::OnFailure, &all).finished_by(), Some(KnownBy::Exit));
}

#[test]
fn event_is_news_once() {
    let mut pod = pod(RestartPolicy::Never, &[]);
    for event in [started(MAIN, "a"), ended("a", 0)] {
        assert_eq!(pod.apply(&event), Some(0), "{event:?}");
        assert_eq!(pod.apply(&event), None, "{event:?}");
    }
    assert_eq!(pod.apply(&started("other", "b")), None);
}

#[test]
fn starts_are_expected_of_what_neither_runs_nor_has_ended_for_good() {
    let all = [started(MAIN, "a"), started(PROXY, "p")];
    let expects = |events: &[Event]| pod(RestartPolicy::Never, events).expects_start();
    assert!(expects(&all[..1]));
    assert!(!expects(&all));
    assert!(!expects(&[&all[..], &[ended("a", 0)]].concat()));
    assert!(expects(&[&all[..], &[ended("a", 143)]].concat()));
}
