//! What holds in every state of a small pod.

use super::*;

/// Every pod of two awaited containers, a helper and a proxy.
fn every_pod(check: impl Fn(&PodState)) {
    let states = [WAITING, RUNNING, OK, FAILED, unknown(1), NOT_REAPED];
    for policy in ["Never", "OnFailure", "Never;restart:in:3"] {
        for first in states {
            for second in states {
                for other in states {
                    for proxy in states {
                        check(&pod(policy, &[first, second], &[other], proxy));
                    }
                }
            }
        }
    }
}

#[test]
fn the_proxy_is_asked_only_while_it_runs_and_no_awaited_container_does() {
    every_pod(|pod| {
        let quits = next(pod, NOW) == QuitProxy;
        let states = pod.containers[..2].iter().map(|container| container.state);
        let has_ended = states.clone().all(|state| !matches!(state, WAITING | RUNNING));
        assert!(!quits || (pod.proxy_runs() && has_ended), "{pod:?}");
    });
}

#[test]
fn the_shim_exits_only_when_nothing_runs_and_waits_only_when_nothing_may_start() {
    every_pod(|pod| match next(pod, NOW) {
        Leave => assert!(pod.containers.iter().all(|container| container.state != RUNNING), "{pod:?}"),
        Wait => assert!(!pod.containers.iter().any(|container| pod.may_start(container, NOW)), "{pod:?}"),
        Scan | QuitProxy => {}
    });
}
