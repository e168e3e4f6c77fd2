//! A pod of a namespace without the label is the same with istio-aux as without it. Deletes the webhook configurations for some
//! seconds.

use std::panic::resume_unwind;

use contract::names::{HOLD_FIELD, PROXY_CONTAINER};
use e2e::cluster::{CONFIGURATIONS, MESH, OPT_IN, client};
use e2e::manifests::{pod, pod_spec, shell};
use e2e::saved::{Saved, until_end_or_signal};
use e2e::{Namespace, scenario};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, DeleteParams};
use serde_json::json;

/// Returns the pod as the API server would store it, without what differs between any two creations.
async fn admitted(ns: &Namespace) -> String {
    let mut pod = ns.dry_run(pod("plain", &pod_spec("Never", &[shell("main", "true")]))).await;
    let metadata = pod["metadata"].as_object_mut().expect("a pod has metadata");
    for differs in ["uid", "creationTimestamp", "managedFields"] {
        metadata.remove(differs);
    }
    let mut text = pod.to_string();
    // The account's token volume has a random name.
    if let Some(at) = text.find("kube-api-access-") {
        let name = text[at..at + "kube-api-access-".len() + 5].to_owned();
        text = text.replace(&name, "kube-api-access");
    }
    text
}

/// Waits until the API server calls the webhook for pods of an opted-in namespace, or no longer does.
async fn until_called(opted_in: &Namespace, expected: bool) {
    opted_in
        .until(&format!("the webhook's calls: {expected}"), async || {
            (admitted(opted_in).await.contains(HOLD_FIELD) == expected).then_some(())
        })
        .await;
}

#[tokio::test]
async fn pod_without_the_label_is_unchanged_byte_for_byte() {
    let opted_in = &scenario("opted-in", &[MESH, OPT_IN]).await;
    let ns = &scenario("unlabeled", &[MESH]).await;
    let kind = ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration");
    let like = |name| json!({"apiVersion": kind.0, "kind": kind.1, "metadata": {"name": name}});
    let saved = [Saved::save(&like(CONFIGURATIONS[0])).await, Saved::save(&like(CONFIGURATIONS[1])).await];
    let both = until_end_or_signal(async || {
        until_called(opted_in, true).await;
        let with = admitted(ns).await;
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(client().await);
        for name in CONFIGURATIONS {
            configurations.delete(name, &DeleteParams::default()).await.expect("it is deleted");
        }
        until_called(opted_in, false).await;
        [with, admitted(ns).await]
    })
    .await;
    for saved in saved {
        saved.restore().await;
    }
    until_called(opted_in, true).await;
    let [with, without] = both.unwrap_or_else(|panic| resume_unwind(panic));
    assert!(with.contains(PROXY_CONTAINER), "Istio has injected its proxy");
    assert_eq!(with, without);
}
