//! The table of cases, and what holds in every state.

use super::*;

const NOW: Duration = Duration::from_secs(10_000);

const BEFORE: Duration = Duration::from_secs(9_999);

const fn exited(code: i32) -> Life {
    Life::Exited { exit: Exit::Code(code), at: NOW }
}

/// Ended with an unknown code, so many seconds ago.
const fn unknown(seconds: u64) -> Life {
    Life::Exited { exit: Exit::Unknown, at: Duration::from_secs(NOW.as_secs() - seconds) }
}

const UNSEEN: Life = Life::Unseen;
const RUNNING: Life = Life::Running;
const OK: Life = exited(0);
const FAILED: Life = exited(3);
const KILLED: Life = exited(137);

/// A pod whose containers have these lives.
fn pod(policy: &str, awaited: &[Life], outlived: &[Life], proxy: Life) -> Pod {
    let names = |prefix: &str, lives: &[Life]| (0..lives.len()).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
    let mut arguments = Watch::new(names("awaited", awaited), RestartPolicy::Never);
    arguments.outlived = names("outlived", outlived);
    let mut pod = Pod::new(&arguments);
    for (container, &life) in pod.containers.iter_mut().zip(awaited.iter().chain(outlived).chain([&proxy])) {
        container.life = life;
        container.policy = policy.parse().unwrap();
    }
    pod
}

type Case = (&'static str, &'static str, &'static [Life], &'static [Life], Life, Step);

#[rustfmt::skip]
const CASES: &[Case] = &[
    // what it shows                                   policy       awaited              outlived     proxy    step
    ("nothing has started",                            "Never",     &[UNSEEN],           &[],         UNSEEN,  Step::Look),
    ("the proxy runs, the held payload not yet",       "Never",     &[UNSEEN],           &[],         RUNNING, Step::Look),
    ("all run",                                        "Never",     &[RUNNING, RUNNING], &[],         RUNNING, Step::Wait),
    ("all run, the proxy is not seen yet",             "Never",     &[RUNNING],          &[],         UNSEEN,  Step::Look),
    ("one of two ended",                               "Never",     &[OK, RUNNING],      &[],         RUNNING, Step::Wait),
    ("one ended before the second was seen",           "Never",     &[OK, UNSEEN],       &[],         RUNNING, Step::Look),
    ("all ended",                                      "Never",     &[OK, OK],           &[],         RUNNING, Step::Quit),
    ("a failure is final under Never",                 "Never",     &[FAILED],           &[],         RUNNING, Step::Quit),
    ("a kill is final under Never",                    "Never",     &[KILLED],           &[],         RUNNING, Step::Quit),
    ("no code is needed under Never",                  "Never",     &[unknown(0)],       &[],         RUNNING, Step::Quit),
    ("success is final under OnFailure",               "OnFailure", &[OK],               &[],         RUNNING, Step::Quit),
    ("a failure is retried under OnFailure",           "OnFailure", &[FAILED],           &[],         RUNNING, Step::Look),
    ("a kill is retried under OnFailure",              "OnFailure", &[KILLED],           &[],         RUNNING, Step::Look),
    ("an unknown code may be retried",                 "OnFailure", &[unknown(79)],      &[],         RUNNING, Step::Look),
    ("an unknown code was not retried for long",       "OnFailure", &[unknown(80)],      &[],         RUNNING, Step::Quit),
    ("one succeeded, one is to be retried",            "OnFailure", &[OK, FAILED],       &[],         RUNNING, Step::Look),
    ("one succeeded, the retry runs",                  "OnFailure", &[OK, RUNNING],      &[],         RUNNING, Step::Wait),
    ("nothing is final under Always",                  "Always",    &[OK],               &[],         RUNNING, Step::Look),
    ("a rule restarts its code",                       "Never;restart:in:3", &[FAILED],  &[],         RUNNING, Step::Look),
    ("a rule leaves other codes to the policy",        "Never;restart:in:3", &[KILLED],  &[],         RUNNING, Step::Quit),
    ("a rule restarts success",                        "OnFailure;restart:in:0", &[OK],  &[],         RUNNING, Step::Look),
    ("a negative rule restarts all others",            "Never;restart:not-in:0", &[KILLED], &[],      RUNNING, Step::Look),
    ("a negative rule leaves its code",                "Never;restart:not-in:0", &[OK],  &[],         RUNNING, Step::Quit),
    ("a rule may match an unknown code",               "Never;restart:in:3", &[unknown(9)], &[],      RUNNING, Step::Look),
    ("payload over before the proxy was seen",         "Never",     &[OK],               &[],         UNSEEN,  Step::Look),
    ("proxy died first, payload runs on",              "Never",     &[RUNNING],          &[],         KILLED,  Step::Wait),
    ("proxy died first, will come back",               "OnFailure", &[RUNNING],          &[],         KILLED,  Step::Look),
    ("proxy ended unasked, will not come back",        "OnFailure", &[RUNNING],          &[],         OK,      Step::Wait),
    ("proxy comes back after the payload's end",       "OnFailure", &[OK],               &[],         KILLED,  Step::Look),
    ("all over",                                       "Never",     &[OK],               &[],         OK,      Step::End),
    ("all over, with failures",                        "Never",     &[FAILED],           &[KILLED],   KILLED,  Step::End),
    ("only what is outlived runs",                     "Never",     &[OK],               &[RUNNING],  RUNNING, Step::Quit),
    ("proxy gone, outlived runs: stay",                "Never",     &[OK],               &[RUNNING],  OK,      Step::Wait),
    ("proxy gone, outlived not started: stay",         "Never",     &[OK],               &[UNSEEN],   OK,      Step::Look),
    ("proxy gone, outlived to be retried: stay",       "OnFailure", &[OK],               &[FAILED],   OK,      Step::Look),
    ("outlived ended, awaited runs",                   "Never",     &[RUNNING],          &[OK],       RUNNING, Step::Wait),
];

#[test]
fn each_state_has_its_step() {
    for &(name, policy, awaited, outlived, proxy, step) in CASES {
        assert_eq!(pod(policy, awaited, outlived, proxy).next(NOW), step, "{name}");
    }
}

#[test]
fn the_window_for_unknown_codes_outlasts_the_kubelets_back_off() {
    let pod = pod("OnFailure", &[UNSEEN], &[], RUNNING);
    let windows: Vec<u64> = (0..7).map(|restarts| pod.window(restarts).as_secs()).collect();
    assert_eq!(windows, [80, 100, 140, 220, 380, 660, 660]);
}

#[test]
fn the_operators_window_comes_first() {
    let mut arguments = Watch::new(vec!["main".into()], RestartPolicy::OnFailure);
    arguments.retry_window = Some(5);
    assert_eq!(Pod::new(&arguments).window(3), Duration::from_secs(5));
}

#[test]
fn a_start_is_counted_once_and_a_new_one_overrides_the_verdict() {
    let mut pod = pod("OnFailure", &[UNSEEN], &[], UNSEEN);
    assert_eq!(pod.started("awaited0", "a", true, NOW), Some(0));
    assert_eq!(pod.started("awaited0", "a", true, NOW), None, "an exec session in it");
    pod.exited(0, Exit::Code(1), NOW);
    assert_eq!(pod.started("awaited0", "a", true, NOW), None, "what is left of it");
    assert_eq!(pod.started("awaited0", "b", true, NOW), Some(0));
    assert_eq!((pod.containers[0].life, pod.containers[0].restarts), (RUNNING, 1));
    assert_eq!(pod.started("somebody-else", "c", true, NOW), None);
}

#[test]
fn when_all_containers_are_restarted_every_verdict_is_void() {
    let mut pod = pod("Never", &[UNSEEN, UNSEEN], &[], UNSEEN);
    pod.containers[0].policy = "Never;restart-all:in:42".parse().unwrap();
    for (name, attempt) in [("awaited0", "a1"), ("awaited1", "b1"), ("istio-proxy", "p1")] {
        pod.started(name, attempt, true, NOW);
    }
    pod.exited(1, Exit::Code(0), NOW);
    pod.exited(0, Exit::Code(42), NOW);
    assert_eq!(pod.next(NOW), Step::Look);
    pod.exited(2, Exit::Code(0), NOW); // the kubelet ends the proxy to start it again
    assert_eq!(pod.next(NOW), Step::Look);
    pod.started("istio-proxy", "p2", true, NOW);
    pod.started("awaited0", "a2", true, NOW);
    pod.exited(0, Exit::Code(0), NOW);
    assert_eq!(pod.next(NOW), Step::Look, "awaited1 is still to run again");
    pod.started("awaited1", "b2", true, NOW);
    pod.exited(1, Exit::Code(0), NOW);
    assert_eq!(pod.next(NOW), Step::Quit);
}

#[test]
fn without_names_every_process_is_awaited() {
    let mut pod = pod("OnFailure", &[UNSEEN, UNSEEN], &[], UNSEEN);
    assert_eq!(pod.started_unnamed("10-1", true, NOW), Some(2), "the proxy");
    assert_eq!(pod.started_unnamed("11-2", false, NOW), Some(0));
    assert_eq!(pod.started_unnamed("11-2", false, NOW), None);
    pod.exited(0, Exit::Code(1), NOW);
    assert_eq!(pod.started_unnamed("12-3", false, NOW), Some(0), "its retry, or the second container");
    assert_eq!(pod.started_unnamed("13-4", false, NOW), Some(1));
    assert_eq!(pod.started_unnamed("14-5", false, NOW), Some(3), "one more than there are containers");
    for index in [0, 1] {
        pod.exited(index, Exit::Code(0), NOW);
    }
    assert_eq!(pod.next(NOW), Step::Wait);
    pod.exited(3, Exit::Code(130), NOW);
    assert_eq!(pod.next(NOW), Step::Quit);
}

/// A pod of `main` and `metrics`, whose proxy runs; main has been announced.
fn announced() -> Pod {
    let mut pod = Pod::new(&Watch::new(vec!["main".into(), "metrics".into()], RestartPolicy::Never));
    pod.announce(1, NOW);
    pod.started("istio-proxy", "p", true, NOW);
    assert!(!pod.expects_a_start(), "that was the proxy");
    pod.announce(1, NOW);
    pod
}

#[test]
fn a_start_that_is_announced_and_never_seen_counts_as_an_end() {
    let mut pod = announced();
    let late = NOW + SEEN_WITHIN;
    assert_eq!(pod.give_up(Some(NOW), NOW + Duration::from_secs(29)), [0; 0], "it may still be seen");
    assert_eq!(pod.give_up(None, late), [0; 0], "nothing was started yet");
    assert_eq!(pod.give_up(Some(BEFORE), late), [0; 0], "nothing since the announcement");
    assert!(pod.expects_a_start(), "still, but no longer at any moment");
    assert!(pod.expects_a_start_soon(NOW) && !pod.expects_a_start_soon(late));
    assert_eq!(pod.give_up(Some(NOW), late), [0]);
    assert!(!pod.expects_a_start());
    assert_eq!(pod.containers[0].life, Life::Exited { exit: Exit::Unknown, at: late });
    pod.announce(1, late);
    pod.started("metrics", "b", true, late);
    pod.exited(1, Exit::Code(0), late);
    assert_eq!(pod.next(late), Step::Quit);
}

#[test]
fn when_the_presumed_one_is_seen_another_takes_its_place() {
    let mut pod = announced();
    let late = NOW + SEEN_WITHIN;
    assert_eq!(pod.give_up(Some(NOW), late), [0]);
    // main's image had been slow: it was metrics that came and went.
    pod.announce(1, late);
    assert_eq!(pod.started("main", "a", true, late), Some(0));
    assert_eq!(pod.containers[1].life, Life::Exited { exit: Exit::Unknown, at: late });
    assert_eq!(pod.next(late), Step::Wait);
    pod.exited(0, Exit::Code(0), late);
    assert_eq!(pod.next(late), Step::Quit);
}

fn came_and_went(pod: &mut Pod, code: i32) -> Option<usize> {
    let index = pod.came_and_went(NOW)?;
    pod.exited(index, Exit::Code(code), NOW);
    Some(index)
}

#[test]
fn one_that_ended_before_it_had_a_name_is_the_first_that_is_to_start() {
    let mut pod = announced();
    assert_eq!(came_and_went(&mut pod, 0), Some(0));
    assert!(!pod.expects_a_start(), "that was the announced one");
    assert_eq!(pod.containers[0].life, exited(0));
    assert_eq!(came_and_went(&mut pod, 7), Some(1));
    assert_eq!(pod.containers[1].life, exited(7));
    assert_eq!(pod.next(NOW), Step::Quit);
    assert_eq!(came_and_went(&mut pod, 0), None, "none is left");
}

#[test]
fn what_was_presumed_to_fail_and_starts_again_displaces_nobody() {
    let mut pod = Pod::new(&Watch::new(vec!["main".into(), "metrics".into()], RestartPolicy::OnFailure));
    pod.started("istio-proxy", "p", true, NOW);
    assert_eq!(came_and_went(&mut pod, 1), Some(0));
    assert_eq!(came_and_went(&mut pod, 1), Some(1), "the kubelet starts each once before it starts any again");
    assert_eq!(came_and_went(&mut pod, 1), Some(0));
    assert_eq!(pod.containers[0].restarts, 1);
    assert_eq!(pod.next(NOW), Step::Look);
    assert_eq!(pod.started("main", "a", true, NOW), Some(0));
    assert_eq!(pod.containers[1].life, exited(1), "as it was");
}

#[test]
fn one_that_is_not_awaited_is_presumed_before_any_that_is() {
    let arguments = Watch { outlived: vec!["setup".into()], ..Watch::new(vec!["main".into()], RestartPolicy::Never) };
    let mut pod = Pod::new(&arguments);
    pod.started("istio-proxy", "p", true, NOW);
    assert_eq!(came_and_went(&mut pod, 0), Some(1));
    assert_eq!(pod.next(NOW), Step::Look, "main may still come");
    assert_eq!(pod.started("setup", "s", true, NOW), Some(1));
    assert_eq!(pod.next(NOW), Step::Quit, "so it was main");
}

#[test]
fn the_code_goes_with_the_end_to_the_one_that_it_was() {
    let mut pod = announced();
    assert_eq!(came_and_went(&mut pod, 3), Some(0));
    assert_eq!(pod.started("main", "a", true, NOW), Some(0));
    assert_eq!(pod.containers[1].life, exited(3), "so it was metrics");
}

#[test]
fn starts_of_other_containers_are_not_ours() {
    let mut pod = announced();
    assert_eq!(pod.started("debugger-x7", "d", true, NOW), None);
    assert!(!pod.expects_a_start());
    pod.announce(1, NOW);
    assert_eq!(pod.started("debugger-x7", "d", true, NOW), None, "an exec session in it");
    assert!(pod.expects_a_start());
}

/// Every pod of two awaited, one outlived and a proxy.
fn every_pod(check: impl Fn(&Pod)) {
    let lives = [UNSEEN, RUNNING, OK, FAILED, unknown(1)];
    for policy in ["Never", "OnFailure", "Never;restart:in:3"] {
        for first in lives {
            for second in lives {
                for other in lives {
                    for proxy in lives {
                        check(&pod(policy, &[first, second], &[other], proxy));
                    }
                }
            }
        }
    }
}

#[test]
fn a_running_proxy_is_asked_exactly_when_the_awaited_have_finished() {
    every_pod(|pod| {
        let proxy_runs = pod.containers[3].life == RUNNING;
        let finished = pod.containers[..2].iter().all(|container| pod.is_finished(container, NOW));
        assert_eq!(pod.next(NOW) == Step::Quit, proxy_runs && finished, "{pod:?}");
    });
}

#[test]
fn the_shim_never_sleeps_while_something_may_start() {
    every_pod(|pod| {
        if pod.next(NOW) == Step::Wait {
            assert!(!pod.containers.iter().any(|container| pod.may_start(container, NOW)), "{pod:?}");
        }
    });
}

#[test]
fn the_shim_ends_only_when_nothing_runs() {
    every_pod(|pod| {
        if pod.next(NOW) == Step::End {
            assert!(!pod.containers.iter().any(|container| container.life == RUNNING), "{pod:?}");
        }
    });
}
