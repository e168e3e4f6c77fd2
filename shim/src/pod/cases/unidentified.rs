//! Exits that cannot be attributed to a container.

use super::*;

#[test]
fn exit_is_of_only_candidate_until_it_starts_again() {
    let mut pod = observed(&["main"], RestartPolicy::Never);
    pod.apply(Event::StartsAnnounced(1), NOW);
    assert_eq!(unidentified(&mut pod, "9-1", 0, NOW), Some(Change::Unidentified(Exit::Code(0))));
    assert_eq!(unidentified(&mut pod, "9-1", 0, NOW), None, "reported twice");
    assert_eq!(next(&pod, after(149)), Scan);
    assert_eq!(next(&pod, after(150)), QuitProxy);
    // It was a container of `kubectl debug`, or an earlier attempt whose end was noticed late.
    for at in [after(2), before(1)] {
        let mut pod = pod.clone();
        started(&mut pod, "main", "a", at);
        assert_eq!(next(&pod, after(150)), Wait, "{at:?}");
    }
}

#[test]
fn unidentified_failure_may_be_the_runtimes() {
    let mut pod = observed(&["main"], RestartPolicy::Never);
    pod.apply(Event::StartsAnnounced(1), NOW);
    unidentified(&mut pod, "9-1", 1, NOW);
    // With `imagePullPolicy: Always` it asks the registry first.
    assert_eq!(next(&pod, after(149)), Scan);
    assert_eq!(next(&pod, after(150)), QuitProxy);
}

#[test]
fn debug_container_in_back_off_keeps_proxy() {
    let mut pod = observed(&["main"], RestartPolicy::OnFailure);
    started(&mut pod, "main", "a", before(10));
    reaped(&mut pod, "a", Some(1), NOW);
    pod.apply(Event::StartsAnnounced(1), NOW);
    unidentified(&mut pod, "9-1", 0, NOW);
    assert_eq!(next(&pod, after(79)), Scan, "main will be restarted");
    started(&mut pod, "main", "b", after(79));
    reaped(&mut pod, "b", Some(1), after(80));
    assert_eq!(next(&pod, after(1000)), Scan, "and again");
}

#[test]
fn probed_container_keeps_debug_container_doubt() {
    let mut pod = observed(&["main"], RestartPolicy::OnFailure);
    pod.containers[0].may_restart = true;
    started(&mut pod, "main", "a", before(10));
    reaped(&mut pod, "a", Some(1), NOW);
    pod.apply(Event::StartsAnnounced(1), NOW);
    unidentified(&mut pod, "9-1", 0, NOW);
    assert_eq!(next(&pod, after(79)), Scan, "main will be restarted");
}

#[test]
fn probed_container_keeps_restart_all_doubt() {
    let mut pod = observed(&["main", "metrics"], RestartPolicy::OnFailure);
    pod.containers[0].may_restart = true;
    pod.containers[1].policy = "Never;restart-all:in:42".parse().unwrap();
    started(&mut pod, "main", "a", before(90));
    started(&mut pod, "metrics", "b", before(80));
    reaped(&mut pod, "b", None, NOW);
    reaped(&mut pod, "a", Some(0), NOW);
    pod.containers[1].role = Role::Helper;
    assert_eq!((next(&pod, after(79)), next(&pod, after(80))), (Scan, QuitProxy));
}

#[test]
fn exit_with_several_candidates_finishes_none() {
    let mut pod = observed(&["main", "metrics"], RestartPolicy::Never);
    pod.apply(Event::StartsAnnounced(1), NOW);
    unidentified(&mut pod, "9-1", 0, NOW);
    assert_eq!(next(&pod, after(3600)), Scan);
    started(&mut pod, "metrics", "b", after(1));
    reaped(&mut pod, "b", Some(0), after(2));
    assert_eq!(next(&pod, after(153)), QuitProxy, "it was main");
}

#[test]
fn as_many_exits_as_candidates_are_theirs() {
    let mut pod = observed(&["main", "metrics"], RestartPolicy::Never);
    for process in ["9-1", "10-2"] {
        pod.apply(Event::StartsAnnounced(1), NOW);
        unidentified(&mut pod, process, 0, NOW);
    }
    assert_eq!(next(&pod, after(150)), QuitProxy);
}

#[test]
fn exit_before_proxy_may_be_an_init_containers() {
    let mut pod = PodState::new(&WatchArgs::new(vec!["main".into()], RestartPolicy::Never), before(10));
    assert_eq!(unidentified(&mut pod, "9-1", 0, NOW), None);
    started(&mut pod, "istio-proxy", "p", NOW);
    assert_eq!(next(&pod, after(3600)), Scan);
}

#[test]
fn exit_identified_late_does_not_replace_later_one() {
    let mut pod = observed(&["main", "metrics"], RestartPolicy::OnFailure);
    pod.containers[0].policy = "Never".parse().unwrap();
    pod.apply(Event::StartsAnnounced(1), NOW);
    unidentified(&mut pod, "9-1", 1, NOW);
    started(&mut pod, "metrics", "b", before(1));
    reaped(&mut pod, "b", Some(0), after(1));
    // Now it is known that it was metrics' first attempt.
    started(&mut pod, "main", "a", after(2));
    reaped(&mut pod, "a", Some(0), after(3));
    assert_eq!(next(&pod, after(3)), QuitProxy);
}
