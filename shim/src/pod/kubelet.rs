//! Models the kubelet for the properties: the true state of a pod. `lying_observer` models what the shim sees of it.

use std::time::Duration;

use contract::args::WatchArgs;
use contract::policy::{ContainerPolicy, RestartPolicy, RuleAction};

use super::{Event, Instance, PodState};
use crate::pod::choices::Choices;

/// Specifies a container and its attempts.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) policy: &'static str,
    /// Exit codes of its attempts; the last code is repeated.
    pub(super) codes: Vec<i32>,
    /// Milliseconds that each attempt runs.
    pub(super) runs: u64,
    /// Seconds until its image is pulled for the first time.
    pub(super) pull: u64,
    /// True if the probe kills the first attempt, for any code.
    pub(super) is_probed: bool,
    pub(super) is_helper: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Truth {
    /// The kubelet will start it at this time or later.
    Due(u64),
    /// The runtime prepares it until then: there is no process. Then it may fail, and the kubelet tries again.
    Preparing(u64),
    /// Its init process has no mounts until then.
    InCreation(u64),
    /// Its init process has mounts, and does not run its command until then.
    Created(u64),
    Running {
        ends_at: u64,
    },
    /// The container has ended; the kubelet will not restart it.
    Over,
}

#[derive(Debug)]
pub(super) struct Contained {
    pub(super) name: String,
    pub(super) policy: ContainerPolicy,
    pub(super) script: Script,
    pub(super) truth: Truth,
    pub(super) attempt: usize,
    pub(super) started: u64,
    pub(super) is_announced: bool,
    /// The observer's view of the current attempt.
    pub(super) seen: Seen,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Seen {
    Nothing,
    /// Opened by a pidfd before it had its name.
    InCreation,
    Named,
}

/// Simulates a pod. Times are in milliseconds.
pub(super) struct World {
    pub(super) choices: Choices,
    pub(super) args: WatchArgs,
    pub(super) now: u64,
    pub(super) containers: Vec<Contained>,
    pub(super) pod: PodState,
    /// Exits and announcements since the last wake-up of the shim.
    pub(super) events: Vec<Event>,
    pub(super) shim_down_until: Option<u64>,
    pub(super) wake_at: u64,
    pub(super) kills_left: u32,
    pub(super) announced: usize,
    pub(super) is_slow: bool,
    /// True if nothing is late, missing or unknown. Restarts of all containers (KEP-5532) cannot be followed otherwise.
    pub(super) is_exact: bool,
    /// True if the last attempt of a container was not observed.
    pub(super) is_lost: bool,
    pub(super) log: Vec<String>,
}

pub(super) const BOOT: &str = "boot";
pub(super) const PROXY: &str = "istio-proxy";

impl World {
    pub(super) fn new(scripts: &[Script], kills: u32, mut choices: Choices) -> Self {
        let names: Vec<String> = (0..scripts.len()).map(|n| format!("c{n}")).collect();
        let of = |is_helper| {
            names.iter().zip(scripts).filter(move |(_, s)| s.is_helper == is_helper).map(|(n, _)| n.clone())
        };
        let mut args = WatchArgs::new(of(false).collect(), RestartPolicy::Never);
        args.helpers = of(true).collect();
        let probed = names.iter().zip(scripts).filter(|(_, script)| script.is_probed);
        args.may_restart = probed.map(|(name, _)| name.clone()).collect();
        args.container_policies =
            names.iter().cloned().zip(scripts.iter().map(|s| s.policy.parse().unwrap())).collect();
        let now = 1_000_000;
        let contained = |(name, script): (&String, &Script)| Contained {
            name: name.clone(),
            policy: script.policy.parse().unwrap(),
            script: script.clone(),
            truth: Truth::Due(now + script.pull * 1000),
            attempt: 0,
            started: 0,
            is_announced: false,
            seen: Seen::Nothing,
        };
        let containers = names.iter().zip(scripts).map(contained).collect();
        let mut pod = PodState::new(&args, ms(now));
        let instance = Instance { id: PROXY.into(), pid: 1, started: ms(now + 1) };
        pod.apply(Event::Started { container: PROXY.into(), instance }, ms(now));
        let is_slow = choices.pick(2) == 0;
        Self {
            choices,
            args,
            is_slow,
            is_exact: scripts.iter().any(|script| script.policy.contains("restart-all")),
            now,
            containers,
            pod,
            events: Vec::new(),
            shim_down_until: None,
            wake_at: now,
            kills_left: kills * u32::from(!scripts.iter().any(|script| script.policy.contains("restart-all"))),
            announced: 0,
            is_lost: false,
            log: Vec::new(),
        }
    }

    /// Runs until the shim asks the proxy to quit. Returns if it has, and the world.
    pub(super) fn play(mut self) -> (bool, Self) {
        let end = self.now + 4 * 3600 * 1000;
        loop {
            let next = self.containers.iter().filter_map(next_of).chain([self.wake_at]).min().unwrap_or(u64::MAX);
            if next > end {
                return (false, self);
            }
            self.now = self.now.max(next);
            if self.wake_at <= self.now {
                if self.wake() {
                    return (true, self);
                }
            } else {
                self.live();
            }
        }
    }

    pub(super) fn choices(self) -> Choices {
        self.choices
    }

    /// Returns true if an awaited container runs or is certain to run.
    pub(super) fn is_payload_unfinished(&self) -> bool {
        self.containers.iter().any(|contained| !contained.script.is_helper && contained.truth != Truth::Over)
    }

    /// Returns true if an unobserved or unidentified container has ended: then the shim may wait for ever.
    pub(super) fn is_unknowable(&self) -> bool {
        self.is_lost || self.pod.unidentified.iter().any(|exit| exit.candidates.len() > 1)
    }

    /// Advances the kubelet and the containers.
    fn live(&mut self) {
        let due = |contained: &Contained| next_of(contained).is_some_and(|at| at <= self.now);
        let Some(index) = self.containers.iter().position(due) else { return };
        // The kubelet starts one container of a pod at a time.
        let is_busy = self.containers.iter().any(|contained| is_there(contained) && !is_running(contained));
        let now = self.now;
        match self.containers[index].truth {
            Truth::Due(_) if is_busy => {
                self.containers[index].truth = Truth::Due(now + 50);
                return;
            }
            Truth::Due(_) => return self.announce(index),
            Truth::Preparing(_) if self.is_slow && self.choices.rarely(8) => {
                // The kubelet tries again, after its back-off.
                self.containers[index].truth = Truth::Due(now + 15_000);
                return;
            }
            Truth::Preparing(_) => {
                let contained = &mut self.containers[index];
                (contained.started, contained.seen) = (now, Seen::Nothing);
                contained.truth = Truth::InCreation(now + 30);
            }
            Truth::InCreation(_) => self.containers[index].truth = Truth::Created(now + 30),
            Truth::Created(_) => {
                let ends_at = now + self.containers[index].script.runs;
                self.containers[index].truth = Truth::Running { ends_at };
            }
            Truth::Over => {}
            Truth::Running { .. } => return self.exit(index),
        }
        // A scan finds it.
        if let Some(interval) = self.pod.scan_interval(ms(now)) {
            let late = if interval > ms(100) && self.choices.rarely(2) && !self.is_exact { 500 } else { 0 };
            self.wake_in(late);
        }
    }

    fn announce(&mut self, index: usize) {
        let contained = &mut self.containers[index];
        // Either some containers have a hosts file of their own, and are not announced, or the runtime is slow at times.
        let is_rare = self.choices.rarely(4) && !self.is_exact;
        contained.is_announced = self.is_slow || !is_rare;
        contained.truth = Truth::Preparing(
            self.now + if self.is_slow && is_rare { [110_000, 840_000][self.choices.pick(2)] } else { 20 },
        );
        self.announced += usize::from(contained.is_announced);
        self.log.push(format!("{} announced {} {}", self.now, contained.name, contained.is_announced));
        if contained.is_announced {
            self.wake_in(0);
        }
    }

    fn exit(&mut self, index: usize) {
        let now = self.now;
        let contained = &mut self.containers[index];
        let code = contained.script.codes[contained.attempt.min(contained.script.codes.len() - 1)];
        self.log.push(format!("{now} exit {} {code} {:?}", contained.name, contained.seen));
        // The kernel is old, or the reaping was missed.
        let told = (!self.choices.rarely(6) || self.is_exact).then_some(code);
        let instance = instance_of(contained).id;
        match contained.seen {
            Seen::Named if self.shim_down_until.is_none() => {
                self.events
                    .extend([Event::Ended { instance: instance.clone() }, Event::Reaped { instance, code: told }]);
            }
            Seen::InCreation if self.shim_down_until.is_none() => {
                self.events.push(Event::UnidentifiedExit { process: instance, code: told });
            }
            Seen::Named => {}
            Seen::Nothing | Seen::InCreation => self.events.push(Event::PidMissed),
        }
        let contained = &mut self.containers[index];
        let is_killed_by_probe = contained.script.is_probed && contained.attempt == 0;
        let rule = contained.policy.rules.iter().find(|rule| rule.matches(code));
        let policy = contained.policy.policy;
        let restarts = rule.is_some()
            || match policy {
                RestartPolicy::Always => true,
                RestartPolicy::Never => false,
                RestartPolicy::OnFailure => code != 0 || is_killed_by_probe,
            };
        let restarts_all = rule.is_some_and(|rule| rule.action == RuleAction::RestartAllContainers);
        let back_off = if is_killed_by_probe { 300 } else { 10_000 * (1 << contained.attempt.min(5)).min(30) };
        contained.attempt += 1;
        contained.truth = if restarts { Truth::Due(now + back_off) } else { Truth::Over };
        // Where some starts are not announced, another's announcement may have been taken for this one's.
        let is_shown = contained.seen == Seen::Named
            || (contained.seen == Seen::InCreation && self.shim_down_until.is_none() && self.is_slow);
        self.is_lost |= !restarts && !is_shown;
        if restarts_all {
            self.restart_all(index);
        }
        self.wake_in(0);
    }

    fn restart_all(&mut self, but: usize) {
        for index in (0..self.containers.len()).filter(|&index| index != but) {
            if let Truth::Running { .. } = self.containers[index].truth {
                let instance = instance_of(&self.containers[index]).id;
                self.events.push(Event::Reaped { instance, code: Some(137) });
            }
            self.containers[index].truth = Truth::Due(self.now + 1000);
            self.containers[index].attempt += 1;
        }
        self.containers[but].truth = Truth::Due(self.now + 1000);
    }
}

/// Returns true if the kubelet has begun to start a container that has not ended.
pub(super) fn is_there(contained: &Contained) -> bool {
    !matches!(contained.truth, Truth::Due(_) | Truth::Over)
}

pub(super) fn is_running(contained: &Contained) -> bool {
    matches!(contained.truth, Truth::Running { .. })
}

pub(super) fn instance_of(contained: &Contained) -> Instance {
    let id = format!("{}-{}", contained.name, contained.attempt);
    Instance { id, pid: 2, started: ms(contained.started) }
}

fn next_of(contained: &Contained) -> Option<u64> {
    match contained.truth {
        Truth::Due(at) | Truth::Preparing(at) | Truth::InCreation(at) | Truth::Created(at) => Some(at),
        Truth::Running { ends_at } => Some(ends_at),
        Truth::Over => None,
    }
}

pub(super) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
