//! `aux-shim supervise` as the parent of a stand-in for pilot-agent, in a PID namespace that the containers share.

use super::pod::{Agent, Pod, closed_port, retry_window};

const NEVER: [&str; 2] = ["--await=main", "--restart-policy=Never"];
const ON_FAILURE: [&str; 2] = ["--await=main", "--restart-policy=OnFailure"];

#[test]
fn the_agent_is_asked_when_the_payload_has_ended_and_its_status_is_passed_on() {
    for agent_code in [0, 3] {
        let pod = Pod::new();
        let agent = Agent::new(&pod, agent_code);
        let mut shim = pod.supervise(&agent, &[&ON_FAILURE[..], &[&retry_window(5)]].concat());
        for (attempt, main_code) in [(1, 1), (2, 0)] {
            let main = pod.payload("main", main_code);
            shim.until_logged_times(attempt, "container started container=main");
            assert_eq!(agent.asked(), 0);
            main.finish();
        }
        let (status, log) = shim.end();
        assert_eq!((status, agent.asked()), (Some(agent_code), 1), "{log}");
        assert_eq!(log.matches(&format!("istio-proxy ended code={agent_code} after=")).count(), 1, "{log}");
    }
}

#[test]
fn an_exit_with_0_that_was_not_asked_for_is_a_failure_where_that_restarts_the_agent() {
    for (policy, expected) in [("OnFailure", 1), ("Never", 0)] {
        let pod = Pod::new();
        let agent = Agent::new(&pod, 0);
        let shim = pod.supervise(&agent, &["--await=main", "--restart-policy", policy]);
        agent.end_unasked();
        let (status, log) = shim.end();
        assert_eq!((status, agent.asked()), (Some(expected), 0), "{policy}: {log}");
        assert!(log.contains("WARN istio-proxy ended before the awaited containers"), "{log}");
    }
}

#[test]
fn an_agent_whose_ports_are_closed_gets_sigterm_and_that_is_no_failure() {
    for (script, expected) in [("trap 'exit 4' TERM", 4), ("", 0)] {
        let pod = Pod::new();
        let (port, _sockets) = closed_port();
        let agent = Agent::that_does(&pod, script, 1).with_port(port);
        let mut shim = pod.supervise(&agent, &NEVER);
        Agent::until_ready(&pod);
        let main = pod.payload("main", 0);
        shim.until_logged("container started container=main");
        main.finish();
        let (status, log) = shim.end();
        assert_eq!(status, Some(expected), "{log}");
        assert_eq!(log.matches("sent SIGTERM to istio-proxy").count(), 1, "{log}");
    }
}

#[test]
fn the_kubelets_sigterm_reaches_the_agent() {
    let pod = Pod::new();
    let agent = Agent::that_does(&pod, "trap 'exit 6' TERM", 0);
    let shim = pod.supervise(&agent, &NEVER);
    Agent::until_ready(&pod);
    assert_eq!(shim.terminate().0, Some(6));
}

#[test]
fn an_agent_that_exits_with_0_when_the_pod_is_deleted_has_not_failed() {
    let pod = Pod::new();
    let agent = Agent::that_does(&pod, "trap 'exit 0' TERM", 1);
    let mut shim = pod.supervise(&agent, &[&ON_FAILURE[..], &[&retry_window(5)]].concat());
    Agent::until_ready(&pod);
    let _main = pod.payload("main", 0);
    shim.until_logged("container started container=main");
    let (status, log) = shim.terminate();
    assert_eq!((status, agent.asked()), (Some(0), 0), "{log}");
}
