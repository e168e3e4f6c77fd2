//! `aux-shim supervise` as the parent of a stand-in for pilot-agent, in a PID namespace that the containers share.

use super::pod::{Agent, NEVER, ON_FAILURE, Pod, closed_port};

#[test]
fn agent_quits_after_payload_and_its_status_is_passed_on() {
    for agent_code in [0, 3] {
        let pod = Pod::new();
        let agent = Agent::new(&pod, agent_code);
        let mut shim = pod.supervise(&agent, &ON_FAILURE);
        for main_code in [1, 0] {
            let main = shim.payload(&pod, "main", main_code);
            assert_eq!(agent.quit_requests(), 0);
            main.finish();
        }
        pod.report_unknown("main=0");
        let (status, log) = shim.end();
        assert_eq!((status, agent.quit_requests()), (Some(agent_code), 1), "{log}");
        assert_eq!(log.matches(&format!("istio-proxy ended code={agent_code} after=")).count(), 1, "{log}");
    }
}

#[test]
fn unrequested_exit_0_becomes_a_failure_if_that_restarts() {
    for (policy, expected) in [("OnFailure", 1), ("Never", 0)] {
        let pod = Pod::new();
        let agent = Agent::new(&pod, 0);
        let shim = pod.supervise(&agent, &["--await=main", "--restart-policy", policy]);
        agent.end_unrequested();
        let (status, log) = shim.end();
        assert_eq!((status, agent.quit_requests()), (Some(expected), 0), "{policy}: {log}");
        assert!(log.contains("WARN istio-proxy ended before the awaited containers"), "{log}");
    }
}

#[test]
fn agent_with_closed_ports_gets_sigterm() {
    for (script, expected) in [("trap 'exit 4' TERM", 4), ("", 0)] {
        let pod = Pod::new();
        let (port, _sockets) = closed_port();
        let agent = Agent::with_script(&pod, script, 1).with_port(port);
        let mut shim = pod.supervise(&agent, &NEVER);
        let main = shim.payload(&pod, "main", 0);
        main.finish();
        let (status, log) = shim.end();
        assert_eq!(status, Some(expected), "{log}");
        assert_eq!(log.matches("sent a signal to istio-proxy signal=SIGTERM").count(), 1, "{log}");
    }
}

#[test]
fn sigterm_of_the_kubelet_reaches_the_agent() {
    let pod = Pod::new();
    let agent = Agent::with_script(&pod, "trap 'exit 6' TERM", 0);
    let shim = pod.supervise(&agent, &NEVER);
    assert_eq!(shim.terminate().0, Some(6));
}

#[test]
fn agent_exit_0_at_pod_deletion_is_not_a_failure() {
    let pod = Pod::new();
    let agent = Agent::with_script(&pod, "trap 'exit 0' TERM", 1);
    let mut shim = pod.supervise(&agent, &ON_FAILURE);
    let _main = shim.payload(&pod, "main", 0);
    let (status, log) = shim.terminate();
    assert_eq!((status, agent.quit_requests()), (Some(0), 0), "{log}");
}
