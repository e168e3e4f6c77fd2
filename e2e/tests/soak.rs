//! Jobs of many shapes while the webhook, the kubelet, containerd and the API server are restarted again and again: none is stuck,
//! and each ends as its payload did. `make soak PODS=1000`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use contract::names::SHIM_CONTAINER;
use e2e::audit::Audit;
use e2e::cluster::{MESH, OPT_IN, client, restart};
use e2e::manifests::{container, job, native_sidecar, pod_spec, shell, with_init, with_memory};
use e2e::tenancy::kubectl;
use e2e::{LOST, Namespace, PodView, has_condition, scenario};
use futures::{StreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Two cores boot no more proxies in time.
const AT_A_TIME: usize = 10;
/// A Job that takes longer is stuck.
const LIMIT: Duration = Duration::from_mins(15);
const BETWEEN_DISTURBANCES: Duration = Duration::from_secs(45);
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A kind of Job.
struct Shape {
    name: &'static str,
    spec: fn() -> Value,
    /// How many pods that fail the Job may have.
    retries: u32,
    /// The condition that the Job ends with.
    end: &'static str,
    /// The exit codes of its last pod's containers.
    codes: &'static [(&'static str, i32)],
}

const SHAPES: [Shape; 7] = [
    Shape {
        name: "instant",
        spec: || pod_spec("Never", &[container("main", &["true"])]),
        retries: 0,
        end: "Complete",
        codes: &[("main", 0)],
    },
    Shape {
        name: "seconds",
        spec: || pod_spec("Never", &[shell("main", "sleep 3")]),
        retries: 0,
        end: "Complete",
        codes: &[("main", 0)],
    },
    Shape {
        name: "three-containers",
        spec: || pod_spec("Never", &[shell("one", "true"), shell("two", "sleep 1"), shell("three", "sleep 2")]),
        retries: 0,
        end: "Complete",
        codes: &[("one", 0), ("two", 0), ("three", 0)],
    },
    Shape {
        name: "failing",
        spec: || pod_spec("Never", &[shell("main", "sleep 1; exit 3"), shell("other", "sleep 2")]),
        retries: 0,
        end: "Failed",
        codes: &[("main", 3), ("other", 0)],
    },
    Shape {
        name: "restarted-in-place",
        spec: || {
            let script = "[ -e /memory/tried ] || { touch /memory/tried; exit 5; }; sleep 1";
            with_memory(pod_spec("OnFailure", &[shell("main", script)]))
        },
        retries: 6,
        end: "Complete",
        codes: &[("main", 0)],
    },
    Shape {
        name: "another-pod",
        spec: || pod_spec("Never", &[shell("main", "sleep 1; exit 7")]),
        retries: 1,
        end: "Failed",
        codes: &[("main", 7)],
    },
    Shape {
        name: "native-sidecar",
        spec: || with_init(pod_spec("Never", &[shell("main", "sleep 2")]), &[native_sidecar("sidecar")]),
        retries: 0,
        end: "Complete",
        codes: &[("main", 0)],
    },
];

/// What the Jobs came to.
#[derive(Default)]
struct Report {
    pods: AtomicUsize,
    shim_restarts: AtomicUsize,
    /// Pods of which containerd lost a container, as it does whoever the pod is of.
    lost: AtomicUsize,
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

/// Runs a Job to its end, and compares that with what its payload did. Returns what differs.
async fn run(ns: &Namespace, number: usize, report: &Report) -> Option<String> {
    let shape = &SHAPES[number % SHAPES.len()];
    let name = format!("{}-{number}", shape.name);
    let (jobs, pods) = (api::<Job>(ns).await, api::<Pod>(ns).await);
    let mut object = job(&name, &(shape.spec)());
    object["spec"]["backoffLimit"] = json!(shape.retries);
    let object: Job = serde_json::from_value(object).expect("it is a Job");
    patient(&name, async || match jobs.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => created.map(drop),
    })
    .await;
    let began = Instant::now();
    let end = loop {
        let job = patient(&name, async || jobs.get(&name).await).await;
        let job = serde_json::to_value(job).expect("a Job is JSON");
        if let Some(end) = ["Complete", "Failed"].into_iter().find(|end| has_condition(&job, end)) {
            break end;
        }
        if began.elapsed() > LIMIT {
            return Some(format!("{name} is stuck"));
        }
        sleep(RETRY_DELAY).await;
    };
    let label = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
    let mut of_job = patient(&name, async || pods.list(&label).await).await.items;
    of_job.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    report.pods.fetch_add(of_job.len(), Ordering::Relaxed);
    let restarts = of_job.iter().filter_map(|pod| PodView(pod).restarts(SHIM_CONTAINER));
    report.shim_restarts.fetch_add(restarts.filter_map(|count| usize::try_from(count).ok()).sum(), Ordering::Relaxed);
    if of_job.iter().any(is_lost) {
        report.lost.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let Some(last) = of_job.last() else { return Some(format!("{name} is {end} and has no pod")) };
    let differs = shape.codes.iter().any(|(container, expected)| PodView(last).exit_code(container) != Some(*expected));
    if end != shape.end || differs {
        return Some(format!("{name} is {end}: {}", PodView(last).in_a_line()));
    }
    patient(&name, async || jobs.delete(&name, &DeleteParams::background()).await).await;
    None
}

/// Whether containerd knows nothing of one of a pod's containers any more.
fn is_lost(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
    let mut ended = statuses.flatten().flatten().filter_map(|container| container.state.as_ref()?.terminated.as_ref());
    ended.any(|terminated| terminated.exit_code == LOST)
}

async fn api<T>(ns: &Namespace) -> Api<T>
where
    T: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client().await, ns.name())
}

/// Restarts one thing after the other, for as long as it is polled.
async fn disturb(count: &AtomicUsize) {
    let disturbances: [fn(); 4] =
        [kill_webhook, || restart("kubelet"), || restart("containerd"), || restart("kube-apiserver")];
    for disturbance in disturbances.into_iter().cycle() {
        sleep(BETWEEN_DISTURBANCES).await;
        spawn_blocking(disturbance).await.expect("it is done");
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

/// A request of the webhook or of a pod of the Jobs: account, verb and resource.
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
async fn no_job_is_stuck_or_ends_otherwise_than_its_payload_while_the_cluster_is_disturbed() {
    let count: usize = std::env::var("PODS").ok().and_then(|text| text.parse().ok()).expect("PODS is a number");
    scenario("soak", &[MESH, OPT_IN], async |ns: &Namespace| {
        let audit = Audit::from_now();
        let (began, report, disturbances) = (Instant::now(), Report::default(), AtomicUsize::new(0));
        let jobs = stream::iter(0..count).map(|number| run(ns, number, &report)).buffer_unordered(AT_A_TIME);
        let jobs = jobs.filter_map(async |differs| differs).collect::<Vec<String>>();
        let wrong = tokio::select! {
            wrong = jobs => wrong,
            () = disturb(&disturbances) => unreachable!("it goes on and on"),
        };
        println!(
            "{count} Jobs, {} pods, {:?}, {} disturbances: {} wrong, {} Jobs with a container that containerd lost, {} restarts of shims",
            report.pods.into_inner(),
            began.elapsed(),
            disturbances.into_inner(),
            wrong.len(),
            report.lost.into_inner(),
            report.shim_restarts.into_inner()
        );
        let asked = audit.count(|event| asked_by_istio_aux(event, ns));
        println!("requests to the API server of istio-aux, and of the Jobs' own account: {asked:?}");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(!asked.is_empty(), "webhooks that start read their certificate");
        assert!(!asked.keys().any(|request| request.contains(" pods")), "nobody asks for pods: {asked:?}");
    })
    .await;
}
