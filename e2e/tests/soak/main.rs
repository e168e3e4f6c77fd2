//! Jobs of many shapes while the webhook, the kubelet, containerd and the API server are restarted again and again: none is stuck, and
//! each ends as its payload did. Beside each runs its control, the same Job in no mesh. `make soak PODS=1000`.

mod jobs;
#[cfg(feature = "node")]
mod node;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use contract::names::SHIM_CONTAINER;
use e2e::audit::Audit;
use e2e::cluster::{MESH, OPT_IN, restart};
use e2e::command::in_background;
use e2e::kubectl::kubectl;
use e2e::namespace::name_of;
use e2e::{Namespace, PodView, scenario};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use serde_json::Value;
use tokio::time::sleep;

/// The Jobs that run at a time, unless `AT_A_TIME` says so.
const AT_A_TIME: usize = 10;
/// A Job that ends so many seconds later than its control is late.
const LATE: i64 = 10;
/// An object that takes longer is stuck.
const LIMIT: Duration = Duration::from_mins(15);
const BETWEEN_DISTURBANCES: Duration = Duration::from_secs(45);
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The objects of the soak, and the ends of their pods.
struct Soak<'a> {
    ns: &'a Namespace,
    /// Has neither mesh nor istio-aux.
    plain: &'a Namespace,
    pods: AtomicUsize,
    /// Pods of which containerd lost a container, as it does with and without istio-aux.
    lost: AtomicUsize,
    /// Shims that the kubelet counts a restart of, and knows no end of before it: a restart of containerd cut their start off.
    cut_off: AtomicUsize,
    /// Shims that had ended as they should when the kubelet was restarted, and started them again.
    repeated: AtomicUsize,
    /// Pods whose shim was restarted after another end, although containerd had not lost it.
    shim_restarts: Mutex<Vec<String>>,
    /// The seconds from each payload's end to the Job's, and those of its control.
    lags: Mutex<Vec<(i64, i64)>>,
    late: AtomicUsize,
    /// How the shims knew of the end.
    known_by: Mutex<BTreeMap<String, usize>>,
}

impl Soak<'_> {
    /// Creates an object and waits for its end.
    async fn run(&self, ns: &Namespace, object: &Value, has_ended: impl Fn(&Value) -> bool) -> Result<Value, String> {
        let name = name_of(object);
        patient(name, async || match ns.try_create(object.clone()).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            created => created.map(drop),
        })
        .await;
        let objects = ns.objects(object);
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let now = patient(name, async || objects.get(name).await).await;
            let now = serde_json::to_value(now).expect("an object is JSON");
            if has_ended(&now) {
                return Ok(now);
            }
            sleep(RETRY_DELAY).await;
        }
        Err(format!("{name} is stuck: {}", ns.describe().await))
    }

    /// Returns the pods with a label, oldest first, once all of them have ended.
    async fn ended_pods(&self, ns: &Namespace, label: &str) -> Result<Vec<Pod>, String> {
        let (began, pods) = (Instant::now(), ns.pods());
        let mut pods = loop {
            let pods = patient(label, async || pods.list(&ListParams::default().labels(label)).await).await.items;
            let Some(going_on) = pods.iter().find(|pod| PodView(pod).final_phase().is_none()) else { break pods };
            if began.elapsed() > LIMIT {
                return Err(format!("{label} is stuck: {}", ns.describe_pod(going_on).await));
            }
            sleep(RETRY_DELAY).await;
        };
        pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
        Ok(pods)
    }

    /// Counts pods, how their shims knew of the end, and shims that were restarted. Returns false where containerd lost a container.
    async fn take_in(&self, pods: &[Pod]) -> bool {
        self.pods.fetch_add(pods.len(), Ordering::Relaxed);
        for pod in pods {
            let view = PodView(pod);
            let known_by = view.outcome().map_or("unknown", |outcome| outcome.known_by).to_owned();
            *self.known_by.lock().expect("no thread panics with it").entry(known_by).or_default() += 1;
            if view.restarts(SHIM_CONTAINER) > Some(0) && !view.was_lost(SHIM_CONTAINER) {
                match view.exit_code_before_restart(SHIM_CONTAINER) {
                    None => _ = self.cut_off.fetch_add(1, Ordering::Relaxed),
                    Some(0) => _ = self.repeated.fetch_add(1, Ordering::Relaxed),
                    Some(_) => {
                        let text = self.ns.describe_pod(pod).await;
                        self.shim_restarts.lock().expect("no thread panics with it").push(text);
                    }
                }
            }
        }
        let is_lost = pods.iter().map(PodView).any(PodView::has_lost_container);
        self.lost.fetch_add(usize::from(is_lost), Ordering::Relaxed);
        !is_lost
    }

    /// Notes how long after its payload a Job ended, and its control.
    fn note_lag(&self, lag: i64, control: i64, last: PodView) {
        self.lags.lock().expect("no thread panics with it").push((lag, control));
        if lag > control + LATE {
            println!("late: {lag} s after its payload, its control {control} s: {}", last.in_a_line());
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn delete(&self, ns: &Namespace, object: &Value) {
        let (name, objects) = (name_of(object), ns.objects(object));
        patient(name, async || objects.delete(name, &DeleteParams::background()).await).await;
    }
}

/// Asks the API server, which is restarted too, until it answers.
async fn patient<T>(what: &str, ask: impl AsyncFn() -> kube::Result<T>) -> T {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(began.elapsed() < LIMIT, "{what}: {error}"),
        }
        sleep(RETRY_DELAY).await;
    }
}

/// Restarts one thing after the other, for as long as it is polled.
async fn disturb(soak: &Soak<'_>, count: &AtomicUsize) {
    let began = Instant::now();
    for restarted in ["webhook", "kubelet", "containerd", "kube-apiserver"].into_iter().cycle() {
        sleep(BETWEEN_DISTURBANCES).await;
        println!(
            "{} s: {} pods have ended; restarting {restarted}",
            began.elapsed().as_secs(),
            soak.pods.load(Ordering::Relaxed)
        );
        in_background(move || if restarted == "webhook" { kill_webhook() } else { restart(restarted) }).await;
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Deletes one of the webhook's pods without grace.
fn kill_webhook() {
    let select = ["-n", "istio-aux", "get", "pods", "--selector=app.kubernetes.io/name=istio-aux", "--output=name"];
    let pods = kubectl(&select);
    let first = pods.lines().next().expect("the webhook has a pod");
    kubectl(&["-n", "istio-aux", "delete", first, "--grace-period=0", "--force"]);
}

/// Names a request of the webhook or of a pod of the soak by its account, verb and resource.
fn request_of_istio_aux(event: &Value, ns: &Namespace) -> Option<String> {
    let user = event["user"]["username"].as_str()?.strip_prefix("system:serviceaccount:")?;
    let (namespace, account) = user.split_once(':')?;
    let object = &event["objectRef"];
    let resource =
        [&object["resource"], &object["subresource"]].map(|name| name.as_str().unwrap_or_default()).join(" ");
    let is_ours = namespace == "istio-aux" || namespace == ns.name();
    is_ours.then(|| format!("{account} {} {}", event["verb"].as_str().unwrap_or_default(), resource.trim_end()))
}

/// Returns a number of the environment.
fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number: {text}")))
}

/// Returns the median and the largest of these, in seconds.
fn summary(mut lags: Vec<i64>) -> String {
    lags.sort_unstable();
    lags.last().map_or_else(|| "none".to_owned(), |max| format!("median {} s, max {max} s", lags[lags.len() / 2]))
}

#[tokio::test]
async fn disturbed_jobs_end_as_their_payloads() {
    let count = number("PODS").expect("PODS is set");
    let ns = &scenario("soak", &[MESH, OPT_IN]).await;
    let plain = &scenario("soak-control", &[]).await;
    soak(ns, plain, count).await;
}

async fn soak(ns: &Namespace, plain: &Namespace, count: usize) {
    let soak = Soak {
        ns,
        plain,
        pods: AtomicUsize::new(0),
        lost: AtomicUsize::new(0),
        cut_off: AtomicUsize::new(0),
        repeated: AtomicUsize::new(0),
        shim_restarts: Mutex::default(),
        lags: Mutex::default(),
        late: AtomicUsize::new(0),
        known_by: Mutex::default(),
    };
    let (audit, began, disturbances) = (Audit::from_now(), Instant::now(), AtomicUsize::new(0));
    let jobs = stream::iter(0..count).map(async |number| jobs::run(&soak, number).await.err());
    let jobs = jobs.buffer_unordered(number("AT_A_TIME").unwrap_or(AT_A_TIME)).filter_map(async |wrong| wrong);
    let mut wrong = tokio::select! {
        wrong = jobs.collect::<Vec<String>>() => wrong,
        () = disturb(&soak, &disturbances) => unreachable!("it goes on and on"),
    };
    let restarts = soak.shim_restarts.into_inner().expect("no thread panicked with it");
    let (pods, lost, disturbances) = (soak.pods.into_inner(), soak.lost.into_inner(), disturbances.into_inner());
    println!(
        "{count} Jobs, {pods} pods, {} s, {disturbances} disturbances: {} wrong, {lost} with a container that containerd \
         lost; shims: the start of {} was cut off, {} were started again after they had ended, {} restarted for another reason",
        began.elapsed().as_secs(),
        wrong.len(),
        soak.cut_off.into_inner(),
        soak.repeated.into_inner(),
        restarts.len()
    );
    let (lags, controls) = soak.lags.into_inner().expect("no thread panicked with it").into_iter().unzip();
    println!("from a payload's end to its Job's: {}; of the controls: {}", summary(lags), summary(controls));
    println!("{} later than {LATE} s after their controls", soak.late.into_inner());
    let known_by = soak.known_by.into_inner().expect("no thread panicked with it");
    println!("how the shims knew of the end: {known_by:?}");
    let requests = audit.count(|event| request_of_istio_aux(event, ns));
    println!("requests to the API server of istio-aux, and of the pods' own account: {requests:?}");
    wrong.extend(restarts.iter().map(|pod| format!("a shim was restarted: {pod}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Pods with a lost container are not compared.
    assert!(lost * 20 <= pods, "containerd has lost a container of {lost} of {pods} pods");
    assert!(known_by.get("exit") > Some(&(known_by.values().sum::<usize>() / 2)), "most ends are seen by the shims");
    assert!(disturbances >= 4, "each was restarted; next: run it with more PODS");
    assert!(!requests.is_empty(), "webhooks that start read their certificate");
    assert!(!requests.keys().any(|request| request.contains(" pods")), "istio-aux reads no pods: {requests:?}");
}
