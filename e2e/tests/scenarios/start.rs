//! Payloads that need the mesh at their first instruction.

use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{GREETING, container, pod, pod_spec};
use e2e::{Namespace, PodView, scenario};

use crate::start_server;

const FIRST_COMMAND: &[&str] = &["curl", "-sSf", "--max-time", "10", "-D", "/dev/stderr", "http://web/"];

#[tokio::test]
async fn first_instruction_reaches_the_mesh() {
    scenario("start", &[MESH, OPT_IN], async |ns: &Namespace| {
        start_server(ns).await;
        ns.create_object(pod("first", &pod_spec("Never", &[container("main", FIRST_COMMAND)]))).await;
        assert_eq!(ns.final_phase("first").await, "Succeeded");
        let log = ns.logs("first", "main").await;
        assert!(log.contains(GREETING), "{log}");
        assert!(log.contains("server: envoy"), "the answer did not come through Envoy:\n{log}");
    })
    .await;
}

#[tokio::test]
async fn control_first_instruction_in_the_mesh_alone_fails() {
    const PODS: usize = 10;
    scenario("control-start", &[MESH], async |ns: &Namespace| {
        start_server(ns).await;
        let mut failed = 0;
        for n in 0..PODS {
            let name = format!("first-{n}");
            ns.create_object(pod(&name, &pod_spec("Never", &[container("main", FIRST_COMMAND)]))).await;
            let code = ns.pod_until(&name, "the payload's end", |pod| PodView(pod).exit_code("main")).await;
            failed += usize::from(code != 0);
        }
        println!("without istio-aux {failed} of {PODS} payloads failed at their first instruction");
        assert!(failed > 0, "the mesh alone served all {PODS} payloads: the control shows nothing");
    })
    .await;
}
