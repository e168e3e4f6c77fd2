//! What the shim does next, from what it has seen of the pod's containers. Pure: no process, file or socket.

use contract::policy::RestartPolicy;

/// How a container's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Exit code as the kubelet reports it: 0 to 255, or 128 + n where signal n ended it.
    Code(i32),
    /// It ended, and the code was not needed or could not be had (kernels before 6.15 do not tell).
    Unknown,
}

/// What the shim has seen of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Not started yet.
    Unseen,
    /// Its init process runs.
    Running,
    /// Its init process has ended.
    Exited(Exit),
}

impl Life {
    /// Whether the container has ended and the kubelet will not start it again.
    pub(crate) fn is_finished(self, policy: RestartPolicy) -> bool {
        match (self, policy) {
            (Self::Unseen | Self::Running, _) => false,
            (Self::Exited(_), RestartPolicy::Never) => true,
            // A container whose code is unknown may come back: ending the proxy would leave the retry without network.
            (Self::Exited(exit), RestartPolicy::OnFailure) => exit == Exit::Code(0),
        }
    }

    /// Whether it does not run now and may start later.
    fn may_start(self, policy: RestartPolicy) -> bool {
        self != Self::Running && !self.is_finished(policy)
    }
}

/// The pod as the shim has seen it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pod<'a> {
    pub(crate) policy: RestartPolicy,
    /// The containers whose work the proxy serves.
    pub(crate) awaited: &'a [Life],
    /// The other regular containers, which the shim only outlives.
    pub(crate) outlived: &'a [Life],
    pub(crate) proxy: Life,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look for new processes, again and again: something may start that must not be missed.
    Look,
    /// Sleep until something that runs ends.
    Wait,
    /// Ask the proxy to quit, and wait for its end.
    Quit,
    /// Nothing is left to do.
    End,
}

/// The next step for a pod.
pub(crate) fn next(pod: &Pod) -> Step {
    let policy = pod.policy;
    let everything = || pod.awaited.iter().chain(pod.outlived).chain(std::iter::once(&pod.proxy));
    if pod.proxy == Life::Running && pod.awaited.iter().all(|life| life.is_finished(policy)) {
        Step::Quit
    } else if everything().all(|life| life.is_finished(policy)) {
        Step::End
    } else if everything().any(|life| life.may_start(policy)) {
        Step::Look
    } else {
        Step::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::Life::{Exited, Running, Unseen};
    use super::*;
    use RestartPolicy::{Never, OnFailure};

    const OK: Life = Exited(Exit::Code(0));
    const FAILED: Life = Exited(Exit::Code(3));
    const KILLED: Life = Exited(Exit::Code(137));
    const UNKNOWN: Life = Exited(Exit::Unknown);

    type Case = (&'static str, RestartPolicy, &'static [Life], &'static [Life], Life, Step);

    const CASES: &[Case] = &[
        // what it shows                                  policy     awaited            outlived   proxy    step
        ("nothing has started", Never, &[Unseen], &[], Unseen, Step::Look),
        ("the proxy runs, held payload does not yet", Never, &[Unseen], &[], Running, Step::Look),
        ("all run", Never, &[Running, Running], &[], Running, Step::Wait),
        ("all run, the proxy is not seen yet", Never, &[Running], &[], Unseen, Step::Look),
        ("one of two ended", Never, &[OK, Running], &[], Running, Step::Wait),
        ("one ended before the second was seen", Never, &[OK, Unseen], &[], Running, Step::Look),
        ("all ended", Never, &[OK, OK], &[], Running, Step::Quit),
        ("a failure is final under Never", Never, &[FAILED], &[], Running, Step::Quit),
        ("a kill is final under Never", Never, &[KILLED], &[], Running, Step::Quit),
        ("no code is needed under Never", Never, &[UNKNOWN], &[], Running, Step::Quit),
        ("success is final under OnFailure", OnFailure, &[OK], &[], Running, Step::Quit),
        ("a failure is retried under OnFailure", OnFailure, &[FAILED], &[], Running, Step::Look),
        ("a kill is retried under OnFailure", OnFailure, &[KILLED], &[], Running, Step::Look),
        ("an unknown code may be retried", OnFailure, &[UNKNOWN], &[], Running, Step::Look),
        ("one succeeded, one is to be retried", OnFailure, &[OK, FAILED], &[], Running, Step::Look),
        ("one succeeded, the retry runs", OnFailure, &[OK, Running], &[], Running, Step::Wait),
        ("payload over before the proxy was seen", Never, &[OK], &[], Unseen, Step::Look),
        ("proxy died first, payload runs on", Never, &[Running], &[], KILLED, Step::Wait),
        ("proxy died first, will come back", OnFailure, &[Running], &[], KILLED, Step::Look),
        ("proxy ended unasked, will not come back", OnFailure, &[Running], &[], OK, Step::Wait),
        ("proxy comes back after the payload's end", OnFailure, &[OK], &[], KILLED, Step::Look),
        ("all over", Never, &[OK], &[], OK, Step::End),
        ("all over, with failures", Never, &[FAILED], &[KILLED], KILLED, Step::End),
        ("only what is outlived runs: quit", Never, &[OK], &[Running], Running, Step::Quit),
        ("proxy gone, outlived runs: stay", Never, &[OK], &[Running], OK, Step::Wait),
        ("proxy gone, outlived not started: stay", Never, &[OK], &[Unseen], OK, Step::Look),
        ("proxy gone, outlived to be retried: stay", OnFailure, &[OK], &[FAILED], OK, Step::Look),
        ("outlived ended, awaited runs", Never, &[Running], &[OK], Running, Step::Wait),
    ];

    #[test]
    fn each_state_has_its_step() {
        for &(name, policy, awaited, outlived, proxy, step) in CASES {
            let pod = Pod { policy, awaited, outlived, proxy };
            assert_eq!(next(&pod), step, "{name}");
        }
    }

    /// Every pod of up to two awaited, one outlived and a proxy, under both policies.
    fn every_pod(check: impl Fn(&Pod)) {
        let lives = [Unseen, Running, OK, FAILED, UNKNOWN];
        for policy in [Never, OnFailure] {
            for first in lives {
                for second in lives {
                    for other in lives {
                        for proxy in lives {
                            check(&Pod { policy, awaited: &[first, second], outlived: &[other], proxy });
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_proxy_is_never_asked_while_an_awaited_container_may_run_again() {
        every_pod(|pod| {
            if next(pod) == Step::Quit {
                assert!(pod.awaited.iter().all(|life| life.is_finished(pod.policy)), "{pod:?}");
            }
        });
    }

    #[test]
    fn a_running_proxy_is_always_asked_once_the_awaited_have_finished() {
        every_pod(|pod| {
            if pod.proxy == Running && pod.awaited.iter().all(|life| life.is_finished(pod.policy)) {
                assert_eq!(next(pod), Step::Quit, "{pod:?}");
            }
        });
    }

    #[test]
    fn the_shim_never_sleeps_while_something_may_start() {
        every_pod(|pod| {
            if next(pod) == Step::Wait {
                assert!(!pod.awaited.iter().any(|life| life.may_start(pod.policy)), "{pod:?}");
            }
        });
    }

    #[test]
    fn the_shim_ends_only_when_nothing_runs() {
        every_pod(|pod| {
            if next(pod) == Step::End {
                assert!(![pod.awaited, pod.outlived, &[pod.proxy]].concat().contains(&Running), "{pod:?}");
            }
        });
    }
}
