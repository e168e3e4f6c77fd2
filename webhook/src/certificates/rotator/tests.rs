//! Runs rotators on a store in memory. A step is one request of one replica, so that a test chooses in which order the
//! requests of several replicas arrive.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};

use proptest::prelude::*;
use tokio::task::yield_now;

use super::*;
use crate::certificates::serving_cert::validity_of_first;

const NAME: &str = "istio-aux.team.svc";
/// Time at which each test begins, in seconds since 1970.
const START: i64 = 1_800_000_000;
const LIFE: Duration = Duration::from_mins(2);
const YEAR: Duration = Duration::from_hours(8760);
/// Age in seconds of the oldest CA bundle that an API server may still use.
const LAG: i64 = 2;
/// Longest time in seconds between two reads of the Secret, less than the delay before a CA is retired.
const READ_INTERVAL: i64 = 20;
const REPLICAS: usize = 3;

/// Holds what the API server stores, and what the replicas serve.
struct Cluster {
    now: i64,
    /// Every version of the Secret.
    secrets: Vec<StoredCerts>,
    /// Every version of the configuration's CA bundle, with the time of its write.
    bundles: Vec<(i64, String)>,
    served: [Option<ServingCert>; REPLICAS],
    /// How many requests for the configuration fail, as while the API server is away.
    failures: u32,
    /// By how many seconds the clock of each replica is ahead.
    ahead: [i64; REPLICAS],
    secret_read_at: [i64; REPLICAS],
    /// How many times the configuration was watched.
    watches: usize,
}

impl Cluster {
    fn secret(&self) -> &StoredCerts {
        &self.secrets[self.secrets.len() - 1]
    }

    fn bundle(&self) -> &str {
        &self.bundles[self.bundles.len() - 1].1
    }

    /// Asserts that every API server trusts every certificate that is served.
    fn assert_trusted(&self) {
        let replaced = self.bundles[1..].iter().map(|(at, _)| *at).chain([i64::MAX]);
        let used = self.bundles.iter().zip(replaced).filter(|(_, replaced)| *replaced > self.now - LAG);
        for ((_, bundle), _) in used {
            let is_trusted = |cert: &ServingCert| bundle.contains(&cert.ca);
            assert!(self.served.iter().flatten().all(is_trusted), "untrusted after {} s", self.now - START);
        }
    }

    /// Counts the writes of the Secret that make a change from one version to the next.
    fn count(&self, is_change: impl Fn(&StoredCerts, &StoredCerts) -> bool) -> usize {
        self.secrets.windows(2).filter(|versions| is_change(&versions[0], &versions[1])).count()
    }
}

/// Fails as the API server does if an object has changed since it was read.
fn check_version(read: &str, versions: usize) -> Result<(), Error> {
    if read == versions.to_string() { Ok(()) } else { Err(Error::Conflict) }
}

/// Gives a replica access to the cluster.
#[derive(Clone)]
struct Access {
    cluster: Arc<Mutex<Cluster>>,
    replica: usize,
}

impl Access {
    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap()
    }
}

impl CertificateStore for Access {
    async fn read_configurations(&self) -> Result<Vec<Configuration>, Error> {
        yield_now().await;
        let mut cluster = self.cluster();
        if cluster.failures > 0 {
            cluster.failures -= 1;
            return Err(Error::Timeout(RECONCILE_TIMEOUT));
        }
        let bundles = BTreeMap::from([("hold".to_owned(), cluster.bundle().to_owned())]);
        Ok(vec![Configuration { name: "istio-aux".to_owned(), version: cluster.bundles.len().to_string(), bundles }])
    }

    async fn changed(&self, read: &[Configuration]) {
        self.cluster().watches += 1;
        while self.cluster().bundles.len().to_string() == read[0].version {
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn read_secret(&self) -> Result<(StoredCerts, String), Error> {
        yield_now().await;
        let mut cluster = self.cluster();
        cluster.secret_read_at[self.replica] = cluster.now;
        Ok((cluster.secret().clone(), cluster.secrets.len().to_string()))
    }

    async fn write_ca_bundle(&self, bundle: &str, read: &Configuration) -> Result<(), Error> {
        yield_now().await;
        let mut cluster = self.cluster();
        check_version(&read.version, cluster.bundles.len())?;
        let now = cluster.now;
        cluster.bundles.push((now, bundle.to_owned()));
        Ok(())
    }

    async fn write_secret(&self, certs: &StoredCerts, version: &str) -> Result<(), Error> {
        yield_now().await;
        let mut cluster = self.cluster();
        check_version(version, cluster.secrets.len())?;
        cluster.secrets.push(certs.clone());
        Ok(())
    }
}

/// Holds replicas and their cluster.
struct Simulation {
    cluster: Arc<Mutex<Cluster>>,
    valid_for: Duration,
    replicas: Vec<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Simulation {
    /// Returns a cluster with this Secret, whose configuration trusts the CAs of it.
    fn new(secret: StoredCerts, valid_for: Duration) -> Self {
        let cluster = Cluster {
            now: START,
            bundles: vec![(START - LAG, plan::ca_bundle(&secret, START))],
            secrets: vec![secret],
            served: Default::default(),
            failures: 0,
            ahead: [0; REPLICAS],
            secret_read_at: [START; REPLICAS],
            watches: 0,
        };
        let cluster = Arc::new(Mutex::new(cluster));
        let mut simulation = Self { cluster, valid_for, replicas: vec![] };
        simulation.replicas = (0..REPLICAS).map(|replica| simulation.replica(replica)).collect();
        simulation
    }

    fn replica(&self, replica: usize) -> Pin<Box<dyn Future<Output = ()>>> {
        let access = Access { cluster: self.cluster.clone(), replica };
        let of_clock = access.clone();
        let clock = move || {
            let cluster = of_clock.cluster();
            let monotonic = Duration::from_secs(u64::try_from(cluster.now - START).unwrap());
            Moment { unix: cluster.now + cluster.ahead[replica], monotonic }
        };
        let of_server = access.clone();
        let serve = move |cert: &ServingCert| {
            let mut cluster = of_server.cluster();
            let is_valid = validity_of_first(&cert.cert).unwrap().contains(cluster.now + cluster.ahead[replica]);
            if is_valid {
                cluster.served[replica] = Some(cert.clone());
            }
            is_valid
        };
        let mut rotator = CertRotator::new(access, clock, NAME, self.valid_for);
        Box::pin(async move {
            loop {
                let reconciled = rotator.reconcile(&serve).await;
                assert!(matches!(reconciled, Ok(_) | Err(Error::Conflict)), "{reconciled:?}");
            }
        })
    }

    /// Runs the whole loop of one replica, whose clock stands still.
    fn run_at_start(&self) -> impl Future<Output = Infallible> + use<> {
        let access = Access { cluster: self.cluster.clone(), replica: 0 };
        let clock = || Moment { unix: START, monotonic: Duration::ZERO };
        CertRotator::new(access, clock, NAME, self.valid_for).run(|_| true)
    }

    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap()
    }

    /// Lets a replica's request arrive, and runs the replica up to its next one.
    fn step(&mut self, replica: usize) {
        assert!(self.replicas[replica].as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    fn kill(&mut self, replica: usize) {
        self.replicas[replica] = self.replica(replica);
        self.cluster().served[replica] = None;
    }

    fn request_renewal(&self) {
        let mut cluster = self.cluster();
        let requested = StoredCerts { is_renewal_requested: true, ..cluster.secret().clone() };
        cluster.secrets.push(requested);
    }

    fn pass_a_second(&mut self) {
        self.cluster().now += 1;
        for replica in 0..REPLICAS {
            while self.must_read_secret(replica) {
                self.step(replica);
            }
        }
    }

    fn must_read_secret(&self, replica: usize) -> bool {
        let cluster = self.cluster();
        cluster.served[replica].is_some() && cluster.now - cluster.secret_read_at[replica] >= READ_INTERVAL
    }

    /// Runs one replica for some seconds, with more steps in each than a renewal takes.
    fn run(&mut self, replica: usize, seconds: usize) {
        for _ in 0..seconds {
            self.cluster().now += 1;
            for _ in 0..10 {
                self.step(replica);
                self.cluster().assert_trusted();
            }
        }
    }
}

fn cert(name: &str, valid_for: Duration) -> ServingCert {
    issue(name, START, valid_for).unwrap()
}

fn stored(current: &ServingCert) -> StoredCerts {
    StoredCerts { current: Some(current.clone()), ..StoredCerts::default() }
}

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

    /// Checks random histories of requests, kills and pauses: every API server trusts every served certificate at any time.
    /// Each replica reads the Secret at least every 20 s.
    #[test]
    fn served_certificate_is_always_trusted(events in prop::collection::vec(event(), 2000)) {
        let mut simulation = Simulation::new(stored(&cert(NAME, LIFE)), LIFE);
        let mut paused_until = [START; REPLICAS];
        for event in events {
            let now = simulation.cluster().now;
            match event {
                // A paused replica only reads the Secret when it has to.
                Event::Step(replica) if now < paused_until[replica] => {}
                Event::Step(replica) => simulation.step(replica),
                Event::Pause(replica) => paused_until[replica] = now + READ_INTERVAL,
                Event::Kill(replica) => simulation.kill(replica),
                Event::RequestRenewal => simulation.request_renewal(),
                Event::Second => simulation.pass_a_second(),
            }
            simulation.cluster().assert_trusted();
        }
        let cluster = simulation.cluster();
        let promotions = cluster.count(|before, after| after.current != before.current && after.current == before.next);
        let replacements = cluster.count(|before, after| ![&before.current, &before.next].contains(&&after.current));
        let retirements = cluster.count(|before, after| before.previous_ca.is_some() && after.previous_ca.is_none());
        prop_assert!(promotions >= 2 && retirements >= 1, "{promotions} promotions, {retirements} retirements");
        prop_assert_eq!(replacements, 0, "a certificate was not renewed in time");
    }
}

#[test]
fn replica_paused_between_reads_removes_no_ca() {
    let old = cert(NAME, YEAR);
    let mut simulation = Simulation::new(stored(&old), YEAR);
    // The first step sends the first request, and the second one answers it.
    simulation.step(1);
    simulation.step(1);
    simulation.request_renewal();
    while simulation.cluster().served[0].as_ref().is_none_or(|served| *served == old) {
        simulation.run(0, 1);
    }
    simulation.run(1, 1);
}

#[test]
fn certificate_of_a_replica_whose_clock_is_ahead_is_served_by_the_others() {
    let day = 24 * 3600;
    let old = issue(NAME, START - 210 * day, YEAR).unwrap();
    let mut simulation = Simulation::new(stored(&old), YEAR);
    simulation.cluster().ahead[0] = 35 * day;
    simulation.run(1, 1);
    for _ in 0..600 {
        simulation.run(0, 1);
        simulation.run(1, 1);
    }
    let cluster = simulation.cluster();
    let current = cluster.secret().current.clone();
    assert!(current.is_some() && current != Some(old));
    assert_eq!(cluster.served[..2], [current.clone(), current]);
}

#[test]
fn requested_renewal_ends_within_ten_minutes() {
    let leaked = cert(NAME, YEAR);
    let mut simulation = Simulation::new(StoredCerts { is_renewal_requested: true, ..stored(&leaked) }, YEAR);
    simulation.run(0, 600);
    let cluster = simulation.cluster();
    let current = cluster.secret().current.as_ref().unwrap();
    assert_ne!(current.key, leaked.key);
    assert_eq!(cluster.bundle(), current.ca);
}

#[test]
fn unusable_stored_certificate_is_replaced() {
    let good = cert(NAME, YEAR);
    let of_another_name = cert("istio-aux.other.svc", YEAR);
    let without_its_key = ServingCert { key: of_another_name.key.clone(), ..good.clone() };
    for bad in [of_another_name, without_its_key] {
        let mut simulation = Simulation::new(stored(&bad), YEAR);
        // A new first certificate is served before it is trusted.
        (0..10).for_each(|_| simulation.step(0));
        let current = simulation.cluster().secret().current.clone().unwrap();
        assert!(is_for(&current.cert, NAME) && current.key_matches());
        assert_eq!(simulation.cluster().served[0].as_ref(), Some(&current));

        let mut simulation = Simulation::new(StoredCerts { next: Some(bad), ..stored(&good) }, YEAR);
        simulation.run(0, 120);
        assert_eq!(simulation.cluster().secret().current.as_ref(), Some(&good));
        assert_eq!(simulation.cluster().bundle(), good.ca);
    }
}

#[tokio::test(start_paused = true)]
async fn first_writes_after_an_outage_follow_each_other_at_once() {
    const FAILURES: u32 = 2 * MAX_CONSECUTIVE_WRITES;
    let simulation = Simulation::new(StoredCerts::default(), YEAR);
    simulation.cluster().failures = FAILURES;
    let rotator = simulation.run_at_start();
    assert!(timeout(RETRY_DELAY * FAILURES + CONFLICT_BACKOFF / 2, rotator).await.is_err());
    let cluster = simulation.cluster();
    assert_eq!(cluster.secret().current.as_ref().map(|cert| cert.ca.as_str()), Some(cluster.bundle()));
}

#[tokio::test(start_paused = true)]
async fn one_watch_stays_until_another_client_changes_the_bundle() {
    // The last read was 5 s before.
    const LASTS: Duration = Duration::from_secs(65);
    let simulation = Simulation::new(stored(&cert(NAME, YEAR)), YEAR);
    let mut rotator = pin!(simulation.run_at_start());
    let mut rotator = async |lasts| assert!(timeout(lasts, rotator.as_mut()).await.is_err());
    rotator(LASTS).await;
    assert_eq!(simulation.cluster().watches, 1);
    let trusted = simulation.cluster().bundle().to_owned();
    simulation.cluster().bundles.push((START, String::new()));
    // It does not wait for its next read of all objects.
    rotator(WAKE_INTERVAL).await;
    assert_eq!(simulation.cluster().bundle(), trusted);
    rotator(LASTS).await;
    assert_eq!(simulation.cluster().watches, 2);
}

/// As Argo CD does with a bundle that its manifests have.
#[tokio::test(start_paused = true)]
async fn client_that_undoes_each_write_is_not_fought() {
    const LASTS: Duration = Duration::from_mins(1);
    let simulation = Simulation::new(stored(&cert(NAME, YEAR)), YEAR);
    let rotator = simulation.run_at_start();
    let other = async {
        loop {
            sleep(Duration::from_millis(50)).await;
            let mut cluster = simulation.cluster();
            if cluster.bundle() != "theirs" {
                cluster.bundles.push((START, "theirs".to_owned()));
            }
        }
    };
    let both = async {
        select! { biased; never = rotator => match never {}, () = other => {} }
    };
    assert!(timeout(LASTS, both).await.is_err());
    let writes = simulation.cluster().bundles[1..].iter().filter(|(_, bundle)| bundle != "theirs").count();
    let pauses = usize::try_from(LASTS.as_secs() / CONFLICT_BACKOFF.as_secs()).unwrap();
    assert!((2..=MAX_CONSECUTIVE_WRITES as usize + pauses).contains(&writes), "{writes} writes in {LASTS:?}");
}
