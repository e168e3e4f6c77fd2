//! The decisions as a table: what was observed, what the kubelet reports, and what is done.

use super::*;

const MAIN: &str = "main";

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
    let mut args = WatchArgs::new(vec![MAIN.to_owned()], policy);
    args.helpers.push("helper".to_owned());
    args.may_restart.push("helper".to_owned());
    let mut pod = PodState::new(&args);
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
        ("another container's end", Never, vec![started(MAIN, "a"), started("helper", "b"), ended("b", 0)], false),
        ("a container that is not the pod's", Never, vec![started("other", "a"), ended("a", 0)], false),
    ];
    for (name, policy, events, is_finished) in cases {
        let expected = is_finished.then_some(Witness::Observed);
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
    assert_eq!(pod.finished_by(), Some(Witness::Kubelet));
}

#[test]
fn report_counts_unless_an_awaited_container_is_seen_to_run() {
    use RestartPolicy::Never;
    let cases = [
        ("never seen", vec![], true),
        ("runs", vec![started(MAIN, "a")], false),
        ("killed", vec![started(MAIN, "a"), ended("a", 137)], true),
        ("a helper runs", vec![started("helper", "a")], true),
    ];
    for (name, events, is_finished) in cases {
        let mut pod = pod(Never, &events);
        pod.set_reported(true);
        assert_eq!(pod.finished_by(), is_finished.then_some(Witness::Kubelet), "{name}");
        pod.set_reported(false);
        assert_eq!(pod.finished_by(), None, "{name}: the report is taken back");
    }
}

#[test]
fn shim_ends_after_the_proxy_and_the_helpers() {
    use RestartPolicy::{Never, OnFailure};
    let finished = || vec![started(MAIN, "a"), ended("a", 0)];
    let and = |more: &[Event]| [&finished()[..], more].concat();
    let (proxy, helper) = (started("istio-proxy", "p"), started("helper", "h"));
    let cases = [
        ("the payload runs", Never, vec![started(MAIN, "a")], Action::Wait),
        ("the proxy was never seen", Never, finished(), Action::QuitProxy),
        ("the proxy runs", Never, and(std::slice::from_ref(&proxy)), Action::QuitProxy),
        ("the proxy has ended", Never, and(&[proxy.clone(), ended("p", 1)]), Action::Exit),
        ("a helper runs", Never, and(&[helper.clone(), proxy.clone(), ended("p", 0)]), Action::Wait),
        ("the helper has ended", Never, and(&[helper, ended("h", 1), proxy.clone(), ended("p", 0)]), Action::Exit),
        ("the proxy failed and is started again", OnFailure, and(&[proxy.clone(), ended("p", 1)]), Action::Wait),
        ("the proxy succeeded", OnFailure, and(&[proxy, ended("p", 0)]), Action::Exit),
    ];
    for (name, policy, events, action) in cases {
        assert_eq!(pod(policy, &events).next(), action, "{name}");
    }
}

#[test]
fn starts_are_expected_of_what_neither_runs_nor_has_ended_for_good() {
    let all = [started(MAIN, "a"), started("helper", "h"), started("istio-proxy", "p")];
    let expects = |events: &[Event]| pod(RestartPolicy::Never, events).expects_start();
    assert!(expects(&all[..2]));
    assert!(!expects(&all));
    assert!(expects(&[&all[..], &[ended("h", 0)]].concat()), "only the kubelet knows");
    assert!(!expects(&[&all[..], &[ended("a", 0)]].concat()));
    assert!(expects(&[&all[..], &[ended("a", 143)]].concat()));
}
