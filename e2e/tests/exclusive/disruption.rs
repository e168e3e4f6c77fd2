//! Restarts of the node's daemons, and an absent istiod, while pods run.

use contract::names::{GATEWAY_NAME_LABEL, PROXY_CONTAINER};
use e2e::cluster::{MESH, OPT_IN, restart, restart_around};
use e2e::command::in_background;
use e2e::manifests::{NEEDS_PROXY, gateway, in_modes, pod, pod_spec, shell, with_memory};
use e2e::node::ProxyProcess;
use e2e::outage::NoReplica;
use e2e::tenancy::{install, name_accounts, set_tenancy, until_bound, until_unbound, wait_for_controller};
use e2e::{PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Runs pods of each mode, restarts a daemon, and asserts that they end as without.
async fn pods_complete_over_a_restart_of(daemon: &str) {
    let ns = &scenario(&format!("restart-{daemon}"), &[MESH, OPT_IN]).await;
    let modes = ["native", "proxy", "status"];
    let main = shell("main", "until [ -e /memory/end ]; do sleep 0.2; done; exit 3");
    let spec = with_memory(pod_spec("Never", &[main, shell("short", "sleep 1")]));
    ns.create_objects(in_modes(&modes, &spec)).await;
    for mode in modes {
        ns.pod_until(mode, "main's start", |pod| PodView(pod).container("main")?.started?.then_some(())).await;
        // A container that ends while containerd is away has 255 for its code, whatever it was.
        ns.pod_until(mode, "the end of short", |pod| PodView(pod).exit_code("short")).await;
    }
    restart(daemon);
    for mode in modes {
        let end = async || ns.try_exec(mode, "main", &["touch", "/memory/end"]).status.success().then_some(());
        ns.until("main to be told to end", end).await;
    }
    for mode in modes {
        let pod = ns.until_ended(mode, "Failed").await;
        let view = PodView(&pod);
        for (container, code) in [("main", 3), ("short", 0), (PROXY_CONTAINER, 0)] {
            assert_eq!(view.exit_code(container), Some(code), "{mode} {container}");
        }
        assert_eq!(view.restarts_of_shim(), 0, "{mode}");
    }
}

/// The hook of the startup hold would keep a gateway from its start while istiod is unavailable.
#[tokio::test]
async fn gateway_starts_without_istiod() {
    let ns = &scenario("gateway-istiod", &[MESH, OPT_IN]).await;
    ns.create_object(gateway("edge", "istio")).await;
    let label = format!("{GATEWAY_NAME_LABEL}=edge");
    let first = ns.pod_with(&label).await.name_any();
    let away = NoReplica::of_istiod();
    ns.delete_pod(&first).await;
    let is_running = |pod: &Pod| PodView(pod).runs(PROXY_CONTAINER) && pod.metadata.name.as_deref() != Some(&first);
    let second = ns
        .until("the proxy of another pod to run", async || ns.pods_with(&label).await.into_iter().find(is_running))
        .await;
    let proxy = second.spec.expect("it has a specification").containers.remove(0);
    assert_eq!((proxy.name.as_str(), proxy.lifecycle), (PROXY_CONTAINER, None));
    drop(away);
    let probe = pod("probe", &pod_spec("Never", &[shell("main", "true")]));
    ns.until("Istio's injector to answer", async || ns.try_dry_run(probe.clone()).await.ok()).await;
}

#[tokio::test]
async fn pods_complete_over_a_restart_of_each_daemon() {
    for daemon in ["kubelet", "containerd", "kube-apiserver"] {
        pods_complete_over_a_restart_of(daemon).await;
    }
}

/// containerd gives the code 255 to what has ended while it was away, so the kubelet starts payload and proxy again.
#[tokio::test]
async fn payload_whose_end_containerd_has_lost_is_run_again_with_its_proxy() {
    let ns = &scenario("lost-ends", &[MESH, OPT_IN]).await;
    let modes = ["native", "proxy"];
    let main = shell("main", &format!("until [ -e /memory/end ]; do sleep 0.2; done; {NEEDS_PROXY}"));
    ns.create_objects(in_modes(&modes, &with_memory(pod_spec("OnFailure", &[main])))).await;
    let mut ends = Vec::new();
    for mode in modes {
        ns.pod_until(mode, "main's start", |pod| PodView(pod).container("main")?.started?.then_some(())).await;
        let [main, proxy] = ["main", PROXY_CONTAINER]
            .map(|container| ProxyProcess::of_container(&format!("{}/{mode}", ns.name()), container));
        let (end, proxy) = (main.path("root/memory/end"), proxy.path(""));
        let waits = format!("timeout 60 sh -c 'while [ -e {} ]; do sleep 0.1; done'", proxy.display());
        ends.push(format!("touch {}; {waits}", end.display()));
    }
    in_background(move || restart_around("containerd", &["sh", "-ec", &ends.join("; ")])).await;
    for mode in modes {
        let pod = ns.until_ended(mode, "Succeeded").await;
        for container in ["main", PROXY_CONTAINER] {
            assert_eq!(PodView(&pod).restarts(container), Some(1), "{mode} {container}: its end was lost");
        }
    }
}

#[tokio::test]
async fn tenants_objects_converge_over_a_restart_of_the_api_server() {
    install();
    let ns = &scenario("away", &[]).await;
    name_accounts(ns, "trainer");
    set_tenancy(ns, "enabled");
    restart("kube-apiserver");
    until_bound(ns).await;
    set_tenancy(ns, "disabled");
    until_unbound(ns).await;
    wait_for_controller();
}
