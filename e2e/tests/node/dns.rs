//! DNS that Istio captures: pilot-agent answers in place of the cluster's.

use e2e::clients::{asks_status, greets, until_said};
use e2e::cluster::{MESH, until_istiod_has};
use e2e::kubectl::kubectl;
use e2e::manifests::{GREETING, job, pod_spec, shell};
use e2e::node::ProxyProcess;
use e2e::{Namespace, scenario};
use serde_json::json;

use crate::confinement::{living_job, sleeper};
use crate::failures::living_pods;
use crate::{beside, client_job, ended};

/// Is known to the mesh alone, as the server `web`.
pub(crate) const MESH_HOST: &str = "only.mesh.example";

/// Has the mesh know the host by an address of the family that pods have.
async fn add_host(ns: &Namespace) {
    let families = ["-n", "default", "get", "service", "kubernetes", "--output=jsonpath={.spec.ipFamilies}"];
    let is_ipv6 = !kubectl(&families).contains("IPv4");
    let address = if is_ipv6 { "2001:2::f0f0" } else { "240.240.240.240" };
    ns.create_object(json!({
        "apiVersion": "networking.istio.io/v1beta1", "kind": "ServiceEntry", "metadata": {"name": "only"},
        "spec": {
            "hosts": [MESH_HOST], "addresses": [address], "location": "MESH_INTERNAL", "resolution": "STATIC",
            "ports": [{"number": 80, "name": "http", "protocol": "HTTP", "targetPort": 8080}],
            "workloadSelector": {"labels": {"app": "web"}},
        },
    }))
    .await;
}

async fn capture(ns: &Namespace) {
    ns.create_object(json!({
        "apiVersion": "networking.istio.io/v1beta1", "kind": "ProxyConfig", "metadata": {"name": "dns"},
        "spec": {"environmentVariables": {"ISTIO_META_DNS_CAPTURE": "true"}},
    }))
    .await;
    until_istiod_has(ns, "ProxyConfig").await;
}

/// Has the mesh know the host, and pods ask the mesh.
pub(crate) async fn capture_with_host(ns: &Namespace) {
    add_host(ns).await;
    capture(ns).await;
}

#[tokio::test]
async fn captured_dns_passes_the_proxy() {
    let ns = &scenario("node-dns-capture", &[MESH]).await;
    living_pods(ns).await;
    add_host(ns).await;
    let asks = |name: &str, script: &str| beside(client_job(name, &pod_spec("Never", &[shell("main", script)])));
    let (_, unknown) = ended(ns, asks("control", &asks_status(MESH_HOST))).await;
    assert_eq!(unknown, "000", "the cluster's DNS does not know it");

    capture(ns).await;
    let (_, said) = ended(ns, asks("asks", &until_said(&greets(MESH_HOST), "*200"))).await;
    assert_eq!(said, format!("{GREETING}\n 200"));
    let beside = living_job(ns, beside(client_job("beside", &sleeper()))).await;
    let inside = living_job(ns, job("inside", &sleeper())).await;
    let [pilot_agent, _] = ProxyProcess::of(&beside);
    let rules = pilot_agent.rules();
    assert_eq!(rules, ProxyProcess::of_sidecar(&inside).rules());
    assert!(rules.iter().any(|rule| rule.contains("--to-ports 15053")), "{rules:?}");
}
