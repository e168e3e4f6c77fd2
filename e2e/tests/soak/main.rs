//! Jobs of many shapes, workflows and trials while the webhook, the kubelet, containerd and the API server are restarted again and
//! again: none is stuck, and each ends as its payload did. `make soak PODS=1000`.

mod jobs;
mod kubeflow;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use contract::names::SHIM_CONTAINER;
use e2e::audit::Audit;
use e2e::cluster::{MESH, OPT_IN, restart};
use e2e::kubeflow::argo::executor_rights;
use e2e::kubeflow::katib::COLLECT_METRICS;
use e2e::tenancy::kubectl;
use e2e::{Namespace, PodView, scenario};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Two cores boot no more proxies in time.
const AT_A_TIME: usize = 10;
/// How many of these are trials: an experiment has as many at a time.
const TRIALS_AT_A_TIME: u32 = 2;
/// What takes longer is stuck.
const LIMIT: Duration = Duration::from_mins(15);
const BETWEEN_DISTURBANCES: Duration = Duration::from_secs(45);
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The objects of the soak, and what their pods came to.
struct Soak<'a> {
    ns: &'a Namespace,
    pods: AtomicUsize,
    /// Pods of which containerd lost a container, as it does with and without istio-aux.
    lost: AtomicUsize,
    /// Pods whose shim was started again although containerd had not lost it.
    shim_restarts: Mutex<Vec<String>>,
}

impl Soak<'_> {
    /// Creates an object and waits for its end.
    async fn run(&self, object: &Value, has_ended: impl Fn(&Value) -> bool) -> Result<Value, String> {
        let name = name_of(object);
        patient(name, async || match self.ns.try_create(object.clone(), &PostParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            created => created.map(drop),
        })
        .await;
        let objects = self.ns.objects(object);
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let now = patient(name, async || objects.get(name).await).await;
            let now = serde_json::to_value(now).expect("an object is JSON");
            if has_ended(&now) {
                return Ok(now);
            }
            sleep(RETRY_DELAY).await;
        }
        Err(format!("{name} is stuck. The pods that have not succeeded: {}", self.ns.describe_unfinished_pods().await))
    }

    /// The pods with a label, oldest first, once all of them have ended. None where containerd lost a container of one of them.
    async fn ended_pods(&self, label: &str) -> Result<Option<Vec<Pod>>, String> {
        let (began, pods) = (Instant::now(), self.ns.pods());
        let mut pods = loop {
            let pods = patient(label, async || pods.list(&ListParams::default().labels(label)).await).await.items;
            let Some(going_on) = pods.iter().find(|pod| PodView(pod).final_phase().is_none()) else { break pods };
            if began.elapsed() > LIMIT {
                return Err(format!("{label} is stuck: {}", self.ns.describe_pod(going_on).await));
            }
            sleep(RETRY_DELAY).await;
        };
        pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
        self.pods.fetch_add(pods.len(), Ordering::Relaxed);
        for pod in &pods {
            let view = PodView(pod);
            if view.restarts(SHIM_CONTAINER) > Some(0) && !view.was_lost(SHIM_CONTAINER) {
                let text = self.ns.describe_pod(pod).await;
                self.shim_restarts.lock().expect("no thread panics with it").push(text);
            }
        }
        if pods.iter().map(PodView).any(PodView::has_lost_container) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        Ok(Some(pods))
    }

    async fn list(&self, like: &Value, label: &str) -> Vec<Value> {
        let objects = self.ns.objects(like);
        let all = patient(label, async || objects.list(&ListParams::default().labels(label)).await).await;
        all.into_iter().map(|object| serde_json::to_value(object).expect("an object is JSON")).collect()
    }

    async fn delete(&self, object: &Value) {
        let (name, objects) = (name_of(object), self.ns.objects(object));
        patient(name, async || objects.delete(name, &DeleteParams::background()).await).await;
    }
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("an object has a name")
}

/// Asks the API server until it answers: it is restarted, too.
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
        let restart = move || if restarted == "webhook" { kill_webhook() } else { restart(restarted) };
        spawn_blocking(restart).await.expect("it is done");
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

/// A request of the webhook or of a pod of the soak: account, verb and resource.
fn asked_by_istio_aux(event: &Value, ns: &Namespace) -> Option<String> {
    let user = event["user"]["username"].as_str()?.strip_prefix("system:serviceaccount:")?;
    let (namespace, account) = user.split_once(':')?;
    let object = &event["objectRef"];
    let resource =
        [&object["resource"], &object["subresource"]].map(|name| name.as_str().unwrap_or_default()).join(" ");
    let is_ours = namespace == "istio-aux" || namespace == ns.name();
    is_ours.then(|| format!("{account} {} {}", event["verb"].as_str().unwrap_or_default(), resource.trim_end()))
}

#[tokio::test]
async fn nothing_is_stuck_or_ends_otherwise_than_its_payload_while_the_cluster_is_disturbed() {
    let count: usize = std::env::var("PODS").ok().and_then(|text| text.parse().ok()).expect("PODS is a number");
    scenario("soak", &[MESH, OPT_IN, COLLECT_METRICS], async |ns: &Namespace| {
        for object in executor_rights() {
            ns.create_object(object).await;
        }
        let soak = Soak { ns, pods: AtomicUsize::new(0), lost: AtomicUsize::new(0), shim_restarts: Mutex::default() };
        let (audit, began, disturbances) = (Audit::from_now(), Instant::now(), AtomicUsize::new(0));
        // A tenth are trials, a tenth workflows, the others Jobs.
        let trials = count / 10;
        let others = stream::iter(0..count - trials).map(async |number| match number % 9 {
            0 => kubeflow::run_workflow(&soak, number).await.err(),
            _ => jobs::run(&soak, number).await.err(),
        });
        let others = others.buffer_unordered(AT_A_TIME - TRIALS_AT_A_TIME as usize).filter_map(async |wrong| wrong);
        let (mut wrong, of_trials) = tokio::select! {
            wrong = async { tokio::join!(others.collect::<Vec<String>>(), kubeflow::run_trials(&soak, trials)) } => wrong,
            () = disturb(&soak, &disturbances) => unreachable!("it goes on and on"),
        };
        wrong.extend(of_trials);
        let restarts = soak.shim_restarts.into_inner().expect("no thread panicked with it");
        println!(
            "{count} Jobs, workflows and trials, {} pods, {} s, {} disturbances: {} wrong, {} with a container that containerd lost, \
             {} shims that were started again",
            soak.pods.into_inner(),
            began.elapsed().as_secs(),
            disturbances.into_inner(),
            wrong.len(),
            soak.lost.into_inner(),
            restarts.len()
        );
        let asked = audit.count(|event| asked_by_istio_aux(event, ns));
        println!("requests to the API server of istio-aux, and of the pods' own account: {asked:?}");
        wrong.extend(restarts.iter().map(|pod| format!("a shim was started again: {pod}")));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(!asked.is_empty(), "webhooks that start read their certificate");
        assert!(!asked.keys().any(|request| request.contains(" pods")), "nobody asks for pods: {asked:?}");
    })
    .await;
}
