//! A law over random histories: whatever replicas do, in whatever order, and wherever they are killed, no API server ever
//! meets a certificate whose authority it does not trust.

use super::*;
use crate::certificates::pair::issue;
use proptest::prelude::*;

/// When the history begins.
const NOW: i64 = 1_800_000_000;
const LIFE: Duration = Duration::from_mins(2);
/// An API server may see the configuration as it was so many seconds ago.
const LAG: i64 = 2;
const REPLICAS: usize = 3;

/// What one replica does next.
#[derive(Debug, Clone, Default)]
enum Doing {
    #[default]
    ReadConfiguration,
    ReadSecret {
        version: usize,
        trusted: String,
    },
    Write {
        configuration: usize,
        secret: usize,
        held: Box<Held>,
        step: Box<Step>,
    },
}

#[derive(Default)]
struct Replica {
    doing: Doing,
    settling: Settling,
    served: Option<Pair>,
}

struct World {
    now: i64,
    /// Every version of the Secret.
    secrets: Vec<Held>,
    /// Every version of the configuration's bundle, and when it was written.
    bundles: Vec<(i64, String)>,
    replicas: [Replica; REPLICAS],
    promotions: usize,
}

impl World {
    fn new() -> Self {
        let current = issue("istio-aux.team.svc", NOW, LIFE).unwrap();
        let bundle = current.ca.clone();
        Self {
            now: NOW,
            secrets: vec![Held { current: Some(current), ..Held::default() }],
            bundles: vec![(NOW - LAG, bundle)],
            replicas: Default::default(),
            promotions: 0,
        }
    }

    fn step(&mut self, which: usize) {
        let replica = &mut self.replicas[which];
        let next = match std::mem::take(&mut replica.doing) {
            Doing::ReadConfiguration => {
                let version = self.bundles.len() - 1;
                Doing::ReadSecret { version, trusted: self.bundles[version].1.clone() }
            }
            Doing::ReadSecret { version, trusted } => {
                let secret = self.secrets.len() - 1;
                let held = self.secrets[secret].clone();
                replica.served.clone_from(&held.current);
                let trusted = Some(BTreeMap::from([("completing".to_owned(), trusted)]));
                let at = Duration::from_secs(u64::try_from(self.now - NOW).unwrap());
                let trusted_for = replica.settling.see(&held, &trusted, self.now, at);
                let step = super::step(&held, replica.served.as_ref(), &trusted, self.now, LIFE, trusted_for);
                Doing::Write { configuration: version, secret, held: Box::new(held), step: Box::new(step) }
            }
            Doing::Write { configuration, secret, held, step } => {
                self.write(configuration, secret, *held, *step);
                Doing::ReadConfiguration
            }
        };
        self.replicas[which].doing = next;
    }

    /// A write passes only where nobody else has written since it was read.
    fn write(&mut self, configuration: usize, secret: usize, held: Held, step: Step) {
        let issue = || Some(issue("istio-aux.team.svc", self.now, LIFE).unwrap());
        let held = match step {
            Step::Keep => return,
            Step::Trust(bundle) => {
                if configuration == self.bundles.len() - 1 {
                    self.bundles.push((self.now, bundle));
                }
                return;
            }
            Step::IssueCurrent | Step::Restore(_) => panic!("nobody renewed the certificate in time"),
            Step::IssueNext => Held { next: issue(), ..held },
            Step::Promote => promoted(held),
        };
        if secret == self.secrets.len() - 1 {
            self.promotions += usize::from(held.next.is_none());
            self.secrets.push(held);
        }
    }

    /// Every bundle that some API server may still go by.
    fn seen(&self) -> impl Iterator<Item = &str> {
        let replaced = self.bundles[1..].iter().map(|(at, _)| Some(*at)).chain([None]);
        let seen = self.bundles.iter().zip(replaced);
        seen.filter(|(_, replaced)| replaced.is_none_or(|at| at > self.now - LAG))
            .map(|((_, bundle), _)| bundle.as_str())
    }

    fn is_trusted(&self, pair: &Pair) -> bool {
        self.seen().all(|bundle| bundle.contains(&pair.ca))
    }
}

/// One thing that happens.
#[derive(Debug, Clone)]
enum Event {
    Step(usize),
    Kill(usize),
    Second,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..REPLICAS).prop_map(Event::Step),
        1 => (0..REPLICAS).prop_map(Event::Kill),
        3 => Just(Event::Second),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_served_is_trusted(events in prop::collection::vec(event(), 2000)) {
        let mut world = World::new();
        for event in events {
            match event {
                Event::Step(which) => world.step(which),
                Event::Kill(which) => world.replicas[which] = Replica::default(),
                Event::Second => world.now += 1,
            }
            for pair in world.replicas.iter().filter_map(|replica| replica.served.as_ref()) {
                prop_assert!(world.is_trusted(pair), "after {} s", world.now - NOW);
            }
        }
        prop_assert!(world.promotions >= 2, "{} promotions in {} s", world.promotions, world.now - NOW);
    }
}
