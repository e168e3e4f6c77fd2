//! A pod that nobody opted in is the same with istio-aux as without it. In a binary of its own: it takes the webhook
//! configuration away for some seconds.

use std::panic::AssertUnwindSafe;

use contract::names::HOLD_FIELD;
use e2e::cluster::{MESH, OPT_IN, client};
use e2e::manifests::{pod, pod_spec, shell};
use e2e::{Namespace, scenario};
use futures::FutureExt;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::Value;

fn plain() -> Value {
    pod("plain", &pod_spec("Never", &[shell("main", "true")]))
}

/// The pod as the API server would store it, without what differs between any two creations.
async fn as_admitted(ns: &Namespace) -> String {
    let mut pod = serde_json::to_value(ns.dry_run(plain()).await).expect("a pod is JSON");
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

/// Whether the webhook is called for pods of an opted-in namespace, as the API server sees its configuration now.
async fn is_called(opted_in: &Namespace) -> bool {
    as_admitted(opted_in).await.contains(HOLD_FIELD)
}

#[tokio::test]
async fn pod_of_a_namespace_without_the_label_is_the_same_byte_for_byte() {
    scenario("opted-in", &[MESH, OPT_IN], async |opted_in: &Namespace| {
        scenario("untouched", &[MESH], async |ns: &Namespace| {
            let configurations: Api<MutatingWebhookConfiguration> = Api::all(client().await);
            let mut ours = configurations.get("istio-aux").await.expect("istio-aux is installed");
            assert!(is_called(opted_in).await, "the webhook works");
            let with = as_admitted(ns).await;
            configurations.delete("istio-aux", &DeleteParams::default()).await.expect("it is deleted");
            let without = AssertUnwindSafe(async {
                ns.until("the webhook to be out of use", || async { (!is_called(opted_in).await).then_some(()) }).await;
                as_admitted(ns).await
            })
            .catch_unwind()
            .await;
            ours.metadata.resource_version = None;
            configurations.create(&PostParams::default(), &ours).await.expect("it is put back");
            ns.until("the webhook to be in use", || async { is_called(opted_in).await.then_some(()) }).await;
            assert!(with.contains("istio-proxy"), "Istio's own change is there");
            assert_eq!(with, without.expect("the control ran"));
        })
        .await;
    })
    .await;
}
