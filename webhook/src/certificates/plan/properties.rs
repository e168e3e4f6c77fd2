//! A property over random histories: whatever replicas do, in whatever order, and wherever they are killed, no API server ever
//! meets a certificate whose CA it does not trust. It assumes that each replica reads the Secret at least every 20 s.

use super::*;
use crate::certificates::serving_cert::issue;
use proptest::prelude::*;

/// When the history begins.
const NOW: i64 = 1_800_000_000;
const LIFE: Duration = Duration::from_mins(2);
/// An API server may see the configuration as it was so many seconds ago.
const LAG: i64 = 2;
/// A replica reads the Secret at least once in so many seconds, less than the delay before a CA is retired.
const READ_INTERVAL: i64 = 20;
const REPLICAS: usize = 3;

/// What one replica does next.
#[derive(Debug, Clone, Default)]
enum Doing {
    #[default]
    ReadConfiguration,
    ReadSecret {
        version: usize,
        bundle: String,
    },
    Write {
        configuration: usize,
        secret: usize,
        stored: Box<StoredCerts>,
        action: Box<Action>,
    },
}

#[derive(Default)]
struct Replica {
    doing: Doing,
    trust_timer: TrustTimer,
    served: Option<ServingCert>,
    read_at: i64,
    /// It takes no step before this time, unless it has to read the Secret.
    paused_until: i64,
}

struct World {
    now: i64,
    /// Every version of the Secret.
    secrets: Vec<StoredCerts>,
    /// Every version of the configuration's bundle, and when it was written.
    bundles: Vec<(i64, String)>,
    replicas: [Replica; REPLICAS],
    promotions: usize,
    retirements: usize,
}

impl World {
    fn new() -> Self {
        let current = issue("istio-aux.team.svc", NOW, LIFE).unwrap();
        let bundle = current.ca.clone();
        Self {
            now: NOW,
            secrets: vec![StoredCerts { current: Some(current), ..StoredCerts::default() }],
            bundles: vec![(NOW - LAG, bundle)],
            replicas: Default::default(),
            promotions: 0,
            retirements: 0,
        }
    }

    fn step(&mut self, which: usize) {
        let replica = &mut self.replicas[which];
        let next = match std::mem::take(&mut replica.doing) {
            Doing::ReadConfiguration => {
                let version = self.bundles.len() - 1;
                Doing::ReadSecret { version, bundle: self.bundles[version].1.clone() }
            }
            Doing::ReadSecret { version, bundle } => {
                let secret = self.secrets.len() - 1;
                let stored = self.secrets[secret].clone();
                replica.served.clone_from(&stored.current);
                replica.read_at = self.now;
                let bundles = Some(BTreeMap::from([("run-to-completion".to_owned(), bundle)]));
                let at = Duration::from_secs(u64::try_from(self.now - NOW).unwrap());
                let trusted_for = replica.trust_timer.observe(&stored, &bundles, self.now, at);
                let action =
                    super::next_action(&stored, replica.served.as_ref(), &bundles, self.now, LIFE, trusted_for);
                Doing::Write { configuration: version, secret, stored: Box::new(stored), action: Box::new(action) }
            }
            Doing::Write { configuration, secret, stored, action } => {
                self.write(configuration, secret, *stored, &action);
                Doing::ReadConfiguration
            }
        };
        self.replicas[which].doing = next;
    }

    /// A write passes only if the object has not changed since it was read.
    fn write(&mut self, configuration: usize, secret: usize, stored: StoredCerts, action: &Action) {
        match action {
            Action::Idle => {}
            Action::PatchCaBundle(bundle) => {
                if configuration == self.bundles.len() - 1 {
                    self.bundles.push((self.now, bundle.clone()));
                }
            }
            Action::IssueCurrent | Action::RestoreSecret(_) => panic!("the certificate was not renewed in time"),
            Action::IssueNext | Action::Promote | Action::RetirePreviousCa => {
                if secret == self.secrets.len() - 1 {
                    let issue = || issue("istio-aux.team.svc", self.now, LIFE);
                    self.secrets.push(super::after(action, stored, issue).unwrap());
                    self.promotions += usize::from(*action == Action::Promote);
                    self.retirements += usize::from(*action == Action::RetirePreviousCa);
                }
            }
        }
    }

    fn request_renewal(&mut self) {
        let stored = self.secrets.last().unwrap().clone();
        self.secrets.push(StoredCerts { is_renewal_requested: true, ..stored });
    }

    fn pass_a_second(&mut self) {
        self.now += 1;
        for which in 0..REPLICAS {
            while self.replicas[which].served.is_some() && self.now - self.replicas[which].read_at >= READ_INTERVAL {
                self.step(which);
            }
        }
    }

    /// Every bundle that some API server may still use.
    fn seen_bundles(&self) -> impl Iterator<Item = &str> {
        let replaced = self.bundles[1..].iter().map(|(at, _)| Some(*at)).chain([None]);
        let seen = self.bundles.iter().zip(replaced);
        seen.filter(|(_, replaced)| replaced.is_none_or(|at| at > self.now - LAG))
            .map(|((_, bundle), _)| bundle.as_str())
    }

    fn is_trusted(&self, cert: &ServingCert) -> bool {
        self.seen_bundles().all(|bundle| bundle.contains(&cert.ca))
    }
}

/// One thing that happens.
#[derive(Debug, Clone)]
enum Event {
    Step(usize),
    Kill(usize),
    Pause(usize),
    RequestRenewal,
    Second,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        120 => (0..REPLICAS).prop_map(Event::Step),
        3 => (0..REPLICAS).prop_map(Event::Kill),
        1 => (0..REPLICAS).prop_map(Event::Pause),
        1 => Just(Event::RequestRenewal),
        30 => Just(Event::Second),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn served_certificate_is_always_trusted(events in prop::collection::vec(event(), 2000)) {
        let mut world = World::new();
        for event in events {
            match event {
                Event::Step(which) if world.now < world.replicas[which].paused_until => {}
                Event::Step(which) => world.step(which),
                Event::Pause(which) => world.replicas[which].paused_until = world.now + READ_INTERVAL,
                Event::Kill(which) => world.replicas[which] = Replica::default(),
                Event::RequestRenewal => world.request_renewal(),
                Event::Second => world.pass_a_second(),
            }
            for cert in world.replicas.iter().filter_map(|replica| replica.served.as_ref()) {
                prop_assert!(world.is_trusted(cert), "after {} s", world.now - NOW);
            }
        }
        prop_assert!(world.promotions >= 2, "{} promotions in {} s", world.promotions, world.now - NOW);
        prop_assert!(world.retirements >= 1, "no CA was retired in {} s", world.now - NOW);
    }
}

#[test]
fn requested_renewal_replaces_key_and_ca_within_ten_minutes_of_a_year() {
    const YEAR: Duration = Duration::from_hours(8760);
    let leaked = issue("istio-aux.team.svc", NOW, YEAR).unwrap();
    let mut stored =
        StoredCerts { current: Some(leaked.clone()), is_renewal_requested: true, ..StoredCerts::default() };
    let mut bundle = leaked.ca.clone();
    let mut timer = TrustTimer::default();
    for second in 0..600 {
        let (now, at) = (NOW + second, Duration::from_secs(u64::try_from(second).unwrap()));
        let bundles = Some(BTreeMap::from([("run-to-completion".to_owned(), bundle.clone())]));
        let trusted_for = timer.observe(&stored, &bundles, now, at);
        let action = super::next_action(&stored, stored.current.as_ref(), &bundles, now, YEAR, trusted_for);
        if let Action::PatchCaBundle(wanted) = &action {
            bundle.clone_from(wanted);
        }
        stored = super::after(&action, stored, || issue("istio-aux.team.svc", now, YEAR)).unwrap();
        assert!(bundle.contains(&stored.current.as_ref().unwrap().ca), "untrusted after {second} s");
    }
    let current = stored.current.unwrap();
    assert_ne!(current.key, leaked.key);
    assert_eq!(bundle, current.ca);
}
