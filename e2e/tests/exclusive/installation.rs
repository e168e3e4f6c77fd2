//! The installation: the rights of its account, and that no admission is lost while its certificate is renewed or its pods are
//! replaced. Changes the webhook's Deployment.

use std::panic::resume_unwind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use e2e::admission::{expiries, until_drained, while_pods_are_created};
use e2e::cluster::{MESH, OPT_IN, client};
use e2e::rights::assert_rules;
use e2e::saved::{Saved, until_end_or_signal};
use e2e::{Namespace, scenario};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

const ISTIO_AUX: &str = "istio-aux";

#[tokio::test]
async fn webhooks_account_may_only_keep_its_certificate() {
    let configurations =
        "get,patch,watch admissionregistration.k8s.io/mutatingwebhookconfigurations [istio-aux,zz-istio-aux]";
    let own = ["get,patch /secrets [istio-aux-certificate]", configurations];
    assert_rules(ISTIO_AUX, ISTIO_AUX, &own, &[configurations]).await;
}

/// Adds an argument to the webhook's.
async fn add_argument(deployment: &Value, argument: &str) {
    let mut arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    arguments.as_array_mut().expect("the webhook has arguments").push(json!(argument));
    let deployments: Api<Deployment> = Api::namespaced(client().await, ISTIO_AUX);
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "webhook", "args": arguments}]}}}});
    let patched = deployments.patch(ISTIO_AUX, &PatchParams::default(), &Patch::Strategic(patch)).await;
    patched.expect("the deployment is patched");
}

/// Waits until only pods of the Deployment as it is now run.
async fn until_replaced(ns: &Namespace) {
    let deployments: Api<Deployment> = Api::namespaced(client().await, ISTIO_AUX);
    ns.until("the webhook's pods to be replaced", async || {
        let deployment = deployments.get(ISTIO_AUX).await.expect("the deployment is read");
        let (generation, status) = (deployment.metadata.generation, deployment.status?);
        let all = |count: Option<i32>| count == Some(2);
        let is_done = status.observed_generation >= generation
            && all(status.updated_replicas)
            && all(status.replicas)
            && all(status.available_replicas);
        is_done.then_some(())
    })
    .await;
    until_drained(ns).await;
}

/// Returns an entry of the webhook's Secret.
async fn stored(key: &str) -> Option<Vec<u8>> {
    let secrets: Api<Secret> = Api::namespaced(client().await, ISTIO_AUX);
    let secret = secrets.get("istio-aux-certificate").await.expect("the Secret is read");
    secret.data.and_then(|mut data| data.remove(key)).map(|value| value.0)
}

/// Waits until the Secret holds another certificate.
async fn until_renewed(ns: &Namespace) {
    let before = stored("tls.crt").await;
    ns.until("another certificate", async || (stored("tls.crt").await != before).then_some(())).await;
}

/// Waits until both replicas serve the same certificate, and it has at least an hour left.
async fn until_a_long_lived_certificate_is_served(ns: &Namespace) {
    let in_an_hour = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970") + Duration::from_hours(1);
    let in_an_hour = i64::try_from(in_an_hour.as_secs()).expect("it is before the end of time");
    ns.until("a long-lived certificate on both replicas", async || match expiries().await[..] {
        [Some(one), Some(other)] => (one == other && one > in_an_hour).then_some(()),
        _ => None,
    })
    .await;
}

/// Requests a renewal by the annotation of the Secret.
async fn request_renewal() {
    let secrets: Api<Secret> = Api::namespaced(client().await, ISTIO_AUX);
    let patch = json!({"metadata": {"annotations": {"istio-aux.io/renewal-requested": "now"}}});
    let patched = secrets.patch("istio-aux-certificate", &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.expect("the Secret is patched");
}

#[tokio::test]
async fn rollouts_and_renewals_lose_no_admission() {
    let ns = &scenario("rollout", &[MESH, OPT_IN]).await;
    let like =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": ISTIO_AUX, "namespace": ISTIO_AUX}});
    let saved = Saved::save(&like).await;
    let with_short_validity = until_end_or_signal(async || {
        request_renewal().await;
        // No renewal is due for months, and so this certificate has been requested.
        let requested = ns.until("a requested certificate", async || stored("next.crt").await).await;
        while_pods_are_created(ns, "a rollout, and the requested renewal", async || {
            add_argument(&saved.object, "--certificate-validity=1m").await;
            let is_current = async || (stored("tls.crt").await.as_ref() == Some(&requested)).then_some(());
            ns.until("the requested certificate to be the current one", is_current).await;
            until_replaced(ns).await;
        })
        .await;
        // Its successor is due a while after it was issued. The one after that is due in two thirds of a minute.
        until_renewed(ns).await;
        while_pods_are_created(ns, "a renewal that is due", async || until_renewed(ns).await).await;
    })
    .await;
    while_pods_are_created(ns, "a rollout back, and a renewal", async || {
        saved.restore().await;
        until_replaced(ns).await;
        until_a_long_lived_certificate_is_served(ns).await;
    })
    .await;
    with_short_validity.unwrap_or_else(|panic| resume_unwind(panic));
}
