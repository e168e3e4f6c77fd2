//! A stream of pods that are created while the webhook changes, each of which must get its shim.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use contract::names::{HOLD_FIELD, SHIM_CONTAINER};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use crate::cluster::client;
use crate::manifests::{pod, pod_spec, shell};
use crate::{Namespace, PodView};

/// The webhook's namespace.
const ISTIO_AUX: &str = "istio-aux";

/// Selects the webhook's pods: other components of istio-aux may run in its namespace.
fn webhooks() -> ListParams {
    ListParams::default().labels("app.kubernetes.io/name=istio-aux")
}

/// Creates pods every 100 ms, by dry run, until told to stop: each must come back with its shim. Returns how many did.
async fn creations(ns: &Namespace, stop: &AtomicBool) -> usize {
    let count = AtomicUsize::new(0);
    while !stop.load(Ordering::Relaxed) {
        let n = count.fetch_add(1, Ordering::Relaxed);
        let one = pod(&format!("pod-{n}"), &pod_spec("Never", &[shell("main", "true")]));
        let made = ns.try_dry_run(one).await.unwrap_or_else(|error| panic!("creation {n} was refused: {error}"));
        let text = made.to_string();
        assert!(text.contains(HOLD_FIELD) && text.contains(SHIM_CONTAINER), "creation {n} came without: {text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    count.into_inner()
}

/// Runs something while pods are created, and prints how many were.
pub async fn while_pods_are_created(ns: &Namespace, what: &str, work: impl AsyncFnOnce()) {
    let stop = AtomicBool::new(false);
    let (created, ()) = tokio::join!(creations(ns, &stop), async {
        work().await;
        stop.store(true, Ordering::Relaxed);
    });
    println!("{what}: {created} pods were created meanwhile, each with its shim");
    assert!(created > 50, "there were creations to lose: {created}");
}

/// Waits until the webhook has two replicas, and those before them have drained.
pub async fn until_drained(ns: &Namespace) {
    let pods: Api<Pod> = Api::namespaced(client().await, ISTIO_AUX);
    ns.until("the webhook's old pods to go", async || {
        let pods = pods.list(&webhooks()).await.expect("the pods are listed").items;
        (pods.len() == 2 && pods.iter().all(|pod| PodView(pod).is_ready("webhook"))).then_some(())
    })
    .await;
}

/// Returns the expiry of the certificate that each of the webhook's replicas serves, by its metrics; `None` for one that does not
/// answer.
pub async fn expiries() -> Vec<Option<i64>> {
    let client = client().await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), ISTIO_AUX);
    let pods = pods.list(&webhooks()).await.expect("the pods are listed").items;
    let each = pods.iter().map(|pod| expiry_at(&client, pod.name_any()));
    futures::future::join_all(each).await
}

async fn expiry_at(client: &Client, pod: String) -> Option<i64> {
    let path = format!("/api/v1/namespaces/{ISTIO_AUX}/pods/{pod}:8080/proxy/metrics");
    let request = http::Request::get(path).body(Vec::new()).expect("it is a request");
    let metrics = client.request_text(request).await.ok()?;
    let line = metrics.lines().find_map(|line| line.strip_prefix("istio_aux_certificate_expiry_timestamp_seconds "));
    line?.parse().ok()
}
