//! Models the observer between the kubelet and the shim's logic. On a busy node it is late and misses short processes; it
//! reports events twice, believes forged announcements, and is killed.

use super::kubelet::{BOOT, Contained, PROXY, Seen, Truth, World, instance_of, is_running, is_there, ms};
use super::{Action, ContainerState, Event, PodState};
use crate::state_file;

impl World {
    /// Wakes the shim after a while; on a busy node later.
    pub(super) fn wake_in(&mut self, milliseconds: u64) {
        let latency = [1, 5, 40, 400][if self.is_exact { 0 } else { self.choices.pick(4) }];
        if self.shim_down_until.is_none() {
            self.wake_at = self.wake_at.min(self.now + milliseconds + latency);
        }
    }

    /// Runs the shim. Returns true if it asks the proxy to quit.
    pub(super) fn wake(&mut self) -> bool {
        if let Some(until) = self.shim_down_until {
            if self.now < until {
                self.wake_at = until;
                return false;
            }
            self.shim_down_until = None;
            self.restart_shim();
        }
        let mut events = std::mem::take(&mut self.events);
        let announced = std::mem::take(&mut self.announced);
        // Only a container that runs can forge an announcement.
        let can_forge = self.containers.iter().any(is_running);
        let forged = usize::from(can_forge && self.choices.rarely(10));
        if self.choices.rarely(8) {
            events.extend(events.clone());
        }
        events.push(Event::StartsAnnounced(announced + forged));
        if self.pod.scan_interval(ms(self.now)).is_some() || announced + forged > 0 {
            events.extend(self.scan());
        }
        for event in events {
            if event != Event::Scanned && event != Event::StartsAnnounced(0) {
                self.log.push(format!("{} {event:?}", self.now));
            }
            self.pod.apply(event, ms(self.now));
        }
        if self.pod.next(ms(self.now)) == Action::QuitProxy {
            self.log.push(format!("{} quit", self.now));
            return true;
        }
        if self.kills_left > 0 && self.choices.rarely(20) {
            self.kills_left -= 1;
            self.shim_down_until = Some(self.now + [500, 12_000][self.choices.pick(2)]);
            self.log.push(format!("{} shim killed", self.now));
        }
        // Scans that find nothing are left out; what is new to find wakes it, see `live`.
        let is_unseen = |contained: &Contained| {
            is_there(contained) && contained.seen != Seen::Named && !matches!(contained.truth, Truth::Preparing(_))
        };
        let interval = self.pod.scan_interval(ms(self.now)).filter(|_| self.containers.iter().any(is_unseen));
        let scan = interval.map(|interval| self.now + u64::try_from(interval.as_millis()).unwrap());
        let deadline = self.pod.deadline(ms(self.now)).map(|at| u64::try_from(at.as_millis()).unwrap());
        self.wake_at =
            self.shim_down_until.or(deadline.into_iter().chain(scan).min()).unwrap_or(u64::MAX).max(self.now + 1);
        false
    }

    /// Reports what /proc shows now.
    fn scan(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for contained in &mut self.containers {
            match contained.truth {
                Truth::InCreation(_) if contained.seen == Seen::Nothing => contained.seen = Seen::InCreation,
                Truth::Created(_) | Truth::Running { .. } if contained.seen != Seen::Named => {
                    contained.seen = Seen::Named;
                    events.push(Event::Started { container: contained.name.clone(), instance: instance_of(contained) });
                }
                _ => {}
            }
        }
        events.push(Event::Scanned);
        events
    }

    /// Restarts the shim, which reads its state file and reattaches to the processes in it.
    fn restart_shim(&mut self) {
        let text = state_file::render(&self.pod, BOOT);
        self.pod = PodState::new(&self.args, ms(self.now));
        state_file::parse(&mut self.pod, &text, BOOT, ms(self.now)).unwrap();
        (self.announced, self.events) = (0, vec![Event::StartsAnnounced(1)]);
        let running: Vec<String> = self.containers.iter().filter(|c| is_there(c)).map(|c| instance_of(c).id).collect();
        for container in &self.pod.containers {
            if let (ContainerState::Running, Some(instance)) = (container.state, &container.instance)
                && instance.id != PROXY
                && !running.contains(&instance.id)
            {
                self.events.push(Event::Reaped { instance: instance.id.clone(), code: None });
            }
        }
        // What it had seen in creation is forgotten; what runs is found by its name.
        for contained in self.containers.iter_mut().filter(|contained| is_there(contained)) {
            contained.seen = Seen::Nothing;
        }
        let found = self.scan();
        self.events.extend(found);
        self.log.push(format!("{} shim restarted", self.now));
    }
}
