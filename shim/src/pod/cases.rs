//! A table of states of a pod, each with its action.

mod every_pod;
mod unidentified;

use super::*;
use contract::policy::RestartPolicy;

const NOW: Duration = Duration::from_secs(10_000);

const fn before(seconds: u64) -> Duration {
    NOW.saturating_sub(Duration::from_secs(seconds))
}

fn after(seconds: u64) -> Duration {
    NOW + Duration::from_secs(seconds)
}

const fn exited(code: i32) -> ContainerState {
    ContainerState::Terminated { exit: Exit::Code(code), at: NOW }
}

/// Returns the state of a container that ended with an unknown code, so many seconds ago.
const fn unknown(seconds: u64) -> ContainerState {
    ContainerState::Terminated { exit: Exit::Unknown, at: Duration::from_secs(NOW.as_secs() - seconds) }
}

const WAITING: ContainerState = ContainerState::Waiting;
const RUNNING: ContainerState = ContainerState::Running;
const OK: ContainerState = exited(0);
const FAILED: ContainerState = exited(3);
const KILLED: ContainerState = exited(137);
const NOT_REAPED: ContainerState = ContainerState::Terminated { exit: Exit::NotReaped, at: NOW };

/// Creates a pod whose containers are in these states.
fn pod(policy: &str, awaited: &[ContainerState], helpers: &[ContainerState], proxy: ContainerState) -> PodState {
    let names = |prefix: &str, count| (0..count).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
    let mut args = WatchArgs::new(names("awaited", awaited.len()), RestartPolicy::Never);
    args.helpers = names("helper", helpers.len());
    let mut pod = PodState::new(&args, before(1000));
    for (container, &state) in pod.containers.iter_mut().zip(awaited.iter().chain(helpers).chain([&proxy])) {
        container.state = state;
        container.policy = policy.parse().unwrap();
    }
    pod
}

type Case = (&'static str, &'static str, &'static [ContainerState], &'static [ContainerState], ContainerState, Next);

/// The next action; `Scan` is a wait with scans for new processes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    Scan,
    Wait,
    QuitProxy,
    Leave,
}

use Next::{Leave, QuitProxy, Scan, Wait};

fn next(pod: &PodState, at: Duration) -> Next {
    match pod.next(at) {
        Action::QuitProxy => QuitProxy,
        Action::Exit => Leave,
        Action::Wait => pod.scan_interval(at).map_or(Wait, |_| Scan),
    }
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    // what it shows                                   policy       awaited              helpers      proxy    action
    ("nothing has started",                            "Never",     &[WAITING],          &[],         WAITING, Scan),
    ("the proxy runs, the held payload not yet",       "Never",     &[WAITING],          &[],         RUNNING, Scan),
    ("all run",                                        "Never",     &[RUNNING, RUNNING], &[],         RUNNING, Wait),
    ("all run, the proxy is not seen yet",             "Never",     &[RUNNING],          &[],         WAITING, Scan),
    ("one of two has ended",                           "Never",     &[OK, RUNNING],      &[],         RUNNING, Wait),
    ("one has ended, the second is not seen",          "Never",     &[OK, WAITING],      &[],         RUNNING, Scan),
    ("all have ended",                                 "Never",     &[OK, OK],           &[],         RUNNING, QuitProxy),
    ("a failure is final under Never",                 "Never",     &[FAILED],           &[],         RUNNING, QuitProxy),
    ("a kill is final under Never",                    "Never",     &[KILLED],           &[],         RUNNING, QuitProxy),
    ("no code is needed under Never",                  "Never",     &[unknown(0)],       &[],         RUNNING, QuitProxy),
    ("nor a reaping",                                  "Never",     &[NOT_REAPED],       &[],         RUNNING, QuitProxy),
    ("success is final under OnFailure",               "OnFailure", &[OK],               &[],         RUNNING, QuitProxy),
    ("a failure is retried under OnFailure",           "OnFailure", &[FAILED],           &[],         RUNNING, Scan),
    ("a kill is retried under OnFailure",              "OnFailure", &[KILLED],           &[],         RUNNING, Scan),
    ("the code is not known yet",                      "OnFailure", &[NOT_REAPED],       &[],         RUNNING, Scan),
    ("an unknown code may be retried",                 "OnFailure", &[unknown(79)],      &[],         RUNNING, Scan),
    ("an unknown code was not retried for long",       "OnFailure", &[unknown(80)],      &[],         RUNNING, QuitProxy),
    ("one has succeeded, one will be retried",         "OnFailure", &[OK, FAILED],       &[],         RUNNING, Scan),
    ("one has succeeded, the retry runs",              "OnFailure", &[OK, RUNNING],      &[],         RUNNING, Wait),
    ("nothing is final under Always",                  "Always",    &[OK],               &[],         RUNNING, Scan),
    ("a rule restarts its code",                       "Never;restart:in:3", &[FAILED],  &[],         RUNNING, Scan),
    ("a rule leaves other codes to the policy",        "Never;restart:in:3", &[KILLED],  &[],         RUNNING, QuitProxy),
    ("a rule restarts success",                        "OnFailure;restart:in:0", &[OK],  &[],         RUNNING, Scan),
    ("a negative rule restarts all others",            "Never;restart:not-in:0", &[KILLED], &[],      RUNNING, Scan),
    ("a negative rule leaves its code",                "Never;restart:not-in:0", &[OK],  &[],         RUNNING, QuitProxy),
    ("a rule may match an unknown code",               "Never;restart:in:3", &[unknown(9)], &[],      RUNNING, Scan),
    ("the payload has ended, the proxy is not seen",   "Never",     &[OK],               &[],         WAITING, Scan),
    ("the proxy has died, the payload runs on",        "Never",     &[RUNNING],          &[],         KILLED,  Wait),
    ("the proxy has died and will be restarted",       "OnFailure", &[RUNNING],          &[],         KILLED,  Scan),
    ("the proxy has exited and will not be restarted", "OnFailure", &[RUNNING],          &[],         OK,      Wait),
    ("the proxy is restarted after the payload's end", "OnFailure", &[OK],               &[],         KILLED,  Scan),
    ("all is over",                                    "Never",     &[OK],               &[],         OK,      Leave),
    ("the proxy is not reaped",                        "Never",     &[OK],               &[],         NOT_REAPED, Wait),
    ("all is over, with failures",                     "Never",     &[FAILED],           &[KILLED],   KILLED,  Leave),
    ("only a helper runs",                             "Never",     &[OK],               &[RUNNING],  RUNNING, QuitProxy),
    ("the proxy has ended, a helper runs",             "Never",     &[OK],               &[RUNNING],  OK,      Wait),
    ("the proxy has ended, a helper is to start",      "Never",     &[OK],               &[WAITING],  OK,      Scan),
    ("the proxy has ended, a helper will be retried",  "OnFailure", &[OK],               &[FAILED],   OK,      Scan),
    ("a helper has ended, the payload runs",           "Never",     &[RUNNING],          &[OK],       RUNNING, Wait),
];

#[test]
fn state_has_its_action() {
    for &(name, policy, awaited, helpers, proxy, action) in CASES {
        assert_eq!(next(&pod(policy, awaited, helpers, proxy), NOW), action, "{name}");
    }
}

#[test]
fn unknown_code_waits_longer_than_kubelets_back_off() {
    let mut pod = pod("OnFailure", &[unknown(0)], &[], RUNNING);
    let mut timeouts = Vec::new();
    for restarts in 0..7 {
        pod.containers[0].restarts = restarts;
        timeouts.push(pod.deadline(NOW).unwrap().saturating_sub(NOW).as_secs());
    }
    assert_eq!(timeouts, [80, 100, 140, 220, 380, 660, 660]);
    pod.retry_window = Some(Duration::from_secs(5));
    assert_eq!(pod.deadline(NOW), Some(after(5)), "the operator decides");
}

/// Creates a pod of these awaited containers, whose proxy runs.
fn observed(names: &[&str], policy: RestartPolicy) -> PodState {
    let args = WatchArgs::new(names.iter().map(|&name| name.to_owned()).collect(), policy);
    let mut pod = PodState::new(&args, before(1000));
    pod.apply(Event::StartsAnnounced(1), before(900));
    started(&mut pod, "istio-proxy", "p", before(900));
    pod
}

fn started(pod: &mut PodState, container: &str, id: &str, at: Duration) -> Option<Change> {
    let instance = Instance { id: id.to_owned(), pid: 7, started: at };
    pod.apply(Event::Started { container: container.to_owned(), instance }, at)
}

fn reaped(pod: &mut PodState, id: &str, code: Option<i32>, at: Duration) -> Option<Change> {
    pod.apply(Event::Reaped { instance: id.to_owned(), code }, at)
}

fn unidentified(pod: &mut PodState, process: &str, code: i32, at: Duration) -> Option<Change> {
    pod.apply(Event::UnidentifiedExit { process: process.to_owned(), code: Some(code) }, at)
}

#[test]
fn event_counts_once_and_late_one_never() {
    let mut pod = observed(&["main"], RestartPolicy::OnFailure);
    assert_eq!(started(&mut pod, "main", "a", before(20)), Some(Change::Started(0)));
    assert_eq!(started(&mut pod, "main", "a", before(20)), None, "an exec session in it");
    assert_eq!(pod.apply(Event::Ended { instance: "a".into() }, before(19)), Some(Change::Ended(0)));
    assert_eq!(reaped(&mut pod, "a", Some(1), before(18)), Some(Change::Reaped(0)));
    assert_eq!(reaped(&mut pod, "a", None, before(18)), None);
    assert_eq!(started(&mut pod, "main", "b", before(10)), Some(Change::Started(0)));
    assert_eq!(started(&mut pod, "main", "a", before(20)), None, "what is left of the first");
    assert_eq!(reaped(&mut pod, "a", Some(0), NOW), None);
    assert_eq!((pod.containers[0].state, pod.containers[0].restarts), (RUNNING, 1));
    assert_eq!(started(&mut pod, "debugger-x7", "c", NOW), None);
}

#[test]
fn final_code_waits_after_possible_probe_kill() {
    for (policy, action) in [("OnFailure", Scan), ("Never", QuitProxy)] {
        let mut pod = pod(policy, &[OK], &[], RUNNING);
        pod.containers[0].may_restart = true;
        assert_eq!(next(&pod, NOW), action, "{policy}");
        assert_eq!(next(&pod, after(5)), QuitProxy, "{policy}");
    }
}

#[test]
fn announcement_delays_only_doubtful_exits() {
    let mut pod = pod("OnFailure", &[unknown(80)], &[], RUNNING);
    assert_eq!(next(&pod, NOW), QuitProxy);
    pod.apply(Event::StartsAnnounced(1), NOW);
    assert_eq!(next(&pod, NOW), Scan);
    assert_eq!(next(&pod, after(959)), Scan);
    pod.apply(Event::Scanned, after(960));
    assert_eq!(next(&pod, after(960)), QuitProxy);
    pod.containers[0].state = OK;
    pod.apply(Event::StartsAnnounced(1), after(960));
    assert_eq!(next(&pod, after(960)), QuitProxy, "it has succeeded");
}

#[test]
fn restart_of_all_containers_finishes_none() {
    let mut pod = observed(&["main", "metrics"], RestartPolicy::Never);
    pod.containers[0].policy = "Never;restart-all:in:42".parse().unwrap();
    started(&mut pod, "main", "a", before(90));
    started(&mut pod, "metrics", "b", before(80));
    reaped(&mut pod, "b", Some(0), before(70));
    reaped(&mut pod, "a", Some(42), before(60));
    assert_eq!(next(&pod, NOW), Scan);
    reaped(&mut pod, "p", Some(0), before(50)); // the kubelet ends the proxy to restart it
    started(&mut pod, "istio-proxy", "p2", before(40));
    started(&mut pod, "main", "a2", before(30));
    reaped(&mut pod, "a2", Some(0), before(20));
    assert_eq!(next(&pod, NOW), Scan, "metrics is to run again");
    started(&mut pod, "metrics", "b2", before(10));
    reaped(&mut pod, "b2", Some(0), NOW);
    assert_eq!(next(&pod, NOW), QuitProxy);
}

/// Announces a start whose process is missed. Returns the change and the action after so many seconds.
fn never_seen(mut pod: PodState, seconds: u64) -> (Option<Change>, Next) {
    pod.apply(Event::StartsAnnounced(1), NOW);
    pod.apply(Event::Scanned, NOW);
    pod.apply(Event::PidMissed, NOW);
    (pod.apply(Event::Scanned, after(seconds)), next(&pod, after(2 * seconds)))
}

#[test]
fn unseen_start_is_reported_and_finishes_nothing() {
    let main = || observed(&["main"], RestartPolicy::Never);
    assert_eq!(never_seen(main(), 149), (None, Scan));
    assert_eq!(never_seen(main(), 150), (Some(Change::NeverSeen), Scan));
    assert_eq!(never_seen(main(), 3600), (Some(Change::NeverSeen), Scan));
}

#[test]
fn overtaken_start_is_reported_and_finishes_nothing() {
    let mut pod = observed(&["main", "metrics"], RestartPolicy::Never);
    pod.apply(Event::StartsAnnounced(1), NOW);
    pod.apply(Event::PidMissed, NOW);
    assert_eq!(pod.apply(Event::Scanned, NOW), None);
    pod.apply(Event::StartsAnnounced(1), after(1));
    started(&mut pod, "metrics", "b", after(1));
    assert_eq!(pod.apply(Event::Scanned, after(1)), Some(Change::NeverSeen));
    assert_eq!(pod.apply(Event::Scanned, after(2)), None, "once");
    reaped(&mut pod, "b", Some(0), after(2));
    assert_eq!(next(&pod, after(3600)), Scan);
}

#[test]
fn scans_are_frequent_while_a_start_is_expected() {
    let every = |pod: &PodState, at| pod.scan_interval(at).map(|interval| interval.as_millis());
    let mut pod = PodState::new(&WatchArgs::new(vec!["main".into()], RestartPolicy::Never), NOW);
    assert_eq!(every(&pod, NOW), Some(20), "starts may not be announced");
    pod.apply(Event::StartsAnnounced(1), NOW);
    assert_eq!((every(&pod, NOW), every(&pod, after(30))), (Some(5), Some(20)));
    started(&mut pod, "istio-proxy", "p", after(1));
    assert_eq!(every(&pod, after(1)), Some(500), "they are");
    pod.apply(Event::StartsAnnounced(1), after(1));
    started(&mut pod, "main", "a", after(2));
    assert_eq!(every(&pod, after(2)), None, "all run");
    pod.apply(Event::StartsAnnounced(1), after(3));
    assert_eq!((every(&pod, after(3)), every(&pod, after(33))), (Some(5), None), "an ephemeral container, perhaps");
    // One with a hosts file of its own.
    let mut pod = observed(&["main"], RestartPolicy::OnFailure);
    started(&mut pod, "main", "a", NOW);
    reaped(&mut pod, "a", Some(1), NOW);
    assert_eq!(every(&pod, NOW), Some(20));
}
