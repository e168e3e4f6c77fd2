//! A trial of Katib and a step of Argo with proxies beside their pods: the stand-ins for Katib's collector and Argo's executor see no
//! container of the mesh, and report through it.

use contract::names::{NODE_RUNTIME_CLASS, PROXY_CONTAINER};
use e2e::cluster::NODE_PROXY;
use e2e::stand_ins::{COLLECTOR, EXECUTOR, FOUND_TRAINING, signal_as_argos_controller, start_servers, step, trial};
use e2e::{Namespace, scenario};

/// Asserts that a pod has its proxy beside it, and that its container logged this before it succeeded.
async fn assert_beside_and_succeeded(ns: &Namespace, name: &str, container: &str, expected: &str) {
    let spec = ns.until_ended(name, "Succeeded").await.spec.expect("a pod has a spec");
    assert_eq!(spec.runtime_class_name.as_deref(), Some(NODE_RUNTIME_CLASS), "{name}");
    assert!(spec.containers.iter().all(|container| container.name != PROXY_CONTAINER), "{name}");
    let log = ns.logs(name, container).await;
    assert!(log.contains(expected), "{name}: {log}");
}

#[tokio::test]
async fn trial_and_step_end_beside_their_proxies() {
    let ns = &scenario("node-stand-ins", &[NODE_PROXY]).await;
    // The kubelet's HTTP probe reaches them by the proxy.
    start_servers(ns).await;
    ns.create_objects([trial("trial", "Never", FOUND_TRAINING), step("step")]).await;
    signal_as_argos_controller(ns, "step").await;
    assert_beside_and_succeeded(ns, "trial", COLLECTOR, "reported score=0.5").await;
    assert_beside_and_succeeded(ns, "step", EXECUTOR, "uploaded").await;
}
