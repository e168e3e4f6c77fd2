//! Properties of every state of a small pod.

use super::*;

/// Checks every pod of two awaited containers, a helper and a proxy.
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
fn proxy_quits_only_without_awaited_containers() {
    every_pod(|pod| {
        let quits = next(pod, NOW) == QuitProxy;
        let states = pod.containers[..2].iter().map(|container| container.state);
        let has_ended = states.clone().all(|state| !matches!(state, WAITING | RUNNING));
        assert!(!quits || (pod.proxy_runs() && has_ended), "{pod:?}");
    });
}

#[test]
fn shim_exits_when_nothing_runs() {
    every_pod(|pod| match next(pod, NOW) {
        Leave => assert!(pod.containers.iter().all(|container| container.state != RUNNING), "{pod:?}"),
        Wait => assert!(!pod.containers.iter().any(|container| pod.may_start(container, NOW)), "{pod:?}"),
        Scan | QuitProxy => {}
    });
}
