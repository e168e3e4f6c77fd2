//! Rules that start every container of a pod again (KEP-5532). Kubernetes 1.36 and later.

use e2e::cluster::NODE_PROXY;
use e2e::manifests::{pod, pod_spec, shell, with_memory, with_rule};
use e2e::node::{self, ProxyProcess};
use e2e::{PodView, scenario};

use crate::strict_server;

#[tokio::test]
async fn pod_that_a_container_starts_again_keeps_its_proxy() {
    let ns = &scenario("node-rule", &[NODE_PROXY]).await;
    strict_server(ns).await;
    let asks = "curl -sSf --max-time 20 -o /dev/null http://web/ || exit 99";
    let until = |file: &str| format!("until [ -e /memory/{file} ]; do sleep 0.2; done");
    let first = format!("touch /memory/first; {}; exit 88", until("again"));
    let main = format!("{asks}; [ -e /memory/first ] || {{ {first}; }}; touch /memory/second; {}", until("end"));
    let main = with_rule(shell("main", &main), "RestartAllContainers", 88);
    let mut spec = with_memory(pod_spec("Never", &[main, shell("other", &format!("{asks}; {}", until("end")))]));
    spec["serviceAccountName"] = "client".into();
    ns.create_object(pod("pod", &spec)).await;
    let touched = async |file: &str| {
        let found = ns.try_exec("pod", "main", &["cat", &format!("/memory/{file}")]);
        found.status.success().then_some(())
    };
    ns.until("the first life", async || touched("first").await).await;
    let name = format!("{}/pod", ns.name());
    let proxy = || ProxyProcess::of(&name);
    let before = proxy();
    ns.exec("pod", "main", &["touch", "/memory/again"]);
    ns.until("the second life", async || touched("second").await).await;
    assert_eq!(proxy(), before);
    ns.exec("pod", "main", &["touch", "/memory/end"]);
    let pod = ns.until_ended("pod", "Succeeded").await;
    let view = PodView(&pod);
    assert_eq!(["main", "other"].map(|name| view.restarts(name)), [Some(1); 2], "{}", view.in_a_line());
    ns.delete_pod("pod").await;
    let has_proxy = || node::proxies_in(ns.name()).iter().any(|proxy| proxy["pod"] == *name);
    ns.until("its proxy to go", async || (!has_proxy()).then_some(())).await;
}
