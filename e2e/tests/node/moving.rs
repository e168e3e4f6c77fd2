//! A namespace that moves from sidecars to node proxies and back: docs/node-operations.md.

use contract::names::PROXY_CONTAINER;
use e2e::clients::assert_heard;
use e2e::cluster::{MESH, OPT_IN};
use e2e::kubectl::{kubectl, wait_for_rollout};
use e2e::manifests::{deployment, job, pod, pod_spec, server, shell};
use e2e::node::{self, proxies_in};
use e2e::outage::NoReplica;
use e2e::tenancy::label;
use e2e::{Namespace, PodView, scenario};

/// Starts the pods of these Deployments again, and waits until the earlier ones have gone.
async fn restart(ns: &Namespace, names: &[&str]) {
    for name in names {
        let deployment = format!("deployment/{name}");
        kubectl(&["-n", ns.name(), "rollout", "restart", &deployment]);
        wait_for_rollout(ns.name(), &deployment);
        let alone = async || (ns.pods_with(&format!("app={name}")).await.len() == 1).then_some(());
        ns.until(&format!("one pod of {name}"), alone).await;
    }
}

/// Returns which of client and server have Istio's sidecar.
async fn with_sidecar(ns: &Namespace) -> Vec<&'static str> {
    let mut found = Vec::new();
    for name in ["client", "web"] {
        if PodView(&ns.pod_with(&format!("app={name}")).await).runs(PROXY_CONTAINER) {
            found.push(name);
        }
    }
    found
}

#[tokio::test]
async fn namespace_moves_from_sidecars_to_node_proxies_and_back() {
    let ns = &scenario("node-moving", &[MESH, OPT_IN]).await;
    let client = deployment("client", &pod_spec("Always", &[shell("main", "sleep 86400")]));
    ns.create_objects(server().into_iter().chain([client])).await;
    for name in ["web", "client"] {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
    }
    assert_eq!(with_sidecar(ns).await, ["client", "web"]);
    assert_heard(ns, "from sidecar to sidecar").await;

    label(ns, "istio-aux.io/proxy=node");
    restart(ns, &["client"]).await;
    assert_eq!(with_sidecar(ns).await, ["web"]);
    assert_heard(ns, "from the node's proxy to a sidecar").await;
    restart(ns, &["web"]).await;
    assert!(with_sidecar(ns).await.is_empty());
    assert_heard(ns, "from one of the node's proxies to the other").await;
    assert_eq!(proxies_in(ns.name()).len(), 2);
    ns.create_object(job("one", &pod_spec("Never", &[shell("main", "true")]))).await;
    ns.until_complete("one").await;
    let ended = ns.pod(&ns.pod_of_job("one").await).await;
    assert_eq!(PodView(&ended).shim_mode(), None);

    let away = NoReplica::of_webhook();
    let other = pod("other", &pod_spec("Always", &[shell("main", "true")]));
    let refusal = ns.try_dry_run(other.clone()).await.expect_err("it would run without its proxy").to_string();
    assert!(refusal.contains("failed calling webhook \"node.istio-aux.io\""), "{refusal}");
    label(ns, "istio-aux.io/proxy-");
    ns.until("a pod to be admitted with a sidecar", async || {
        let admitted = ns.try_dry_run(other.clone()).await.ok()?;
        admitted["spec"].to_string().contains(PROXY_CONTAINER).then_some(())
    })
    .await;
    drop(away);

    restart(ns, &["web"]).await;
    assert_eq!(with_sidecar(ns).await, ["web"]);
    assert_heard(ns, "from the node's proxy to a sidecar again").await;
    restart(ns, &["client"]).await;
    assert_eq!(with_sidecar(ns).await, ["client", "web"]);
    assert_heard(ns, "from sidecar to sidecar again").await;
    node::until_no_proxies(ns).await;
}
