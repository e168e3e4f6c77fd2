//! Tasks of Airflow's `KubernetesPodOperator`, run by Airflow itself.

use std::process::Output;
use std::time::Duration;

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{GREETING, payload_image};
use e2e::{Namespace, PodView, scenario};

use crate::{clients, start_server};

const PODS: [&str; 3] = ["value", "reader", "deferred"];

/// Runs the DAG of `clients/airflow`, which keeps its pods.
async fn run_dag(ns: &Namespace) -> Output {
    start_server(ns).await;
    clients::run(ns, "airflow", vec![("PAYLOAD_IMAGE", payload_image())]).await
}

#[tokio::test]
async fn tasks_of_airflow_succeed_and_their_pods_end() {
    let ns = &scenario("airflow", &[MESH, OPT_IN]).await;
    let output = run_dag(ns).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    for name in PODS {
        let pod = ns.until_ended(name, "Succeeded").await;
        let view = PodView(&pod);
        assert_eq!(view.exit_code(PROXY_CONTAINER), Some(0), "{name}");
        assert!(ns.logs(name, "base").await.contains(GREETING), "{name}");
    }
    assert!(ns.logs("reader", "base").await.contains("read 7"));
    // In a shared PID namespace, the shell that ends XCom's sidecar would end itself first.
    let value = ns.pod("value").await;
    let view = PodView(&value);
    assert_eq!((view.shim_mode(), view.exit_code("airflow-xcom-sidecar")), (Some("status"), Some(0)));
}

#[tokio::test]
async fn control_pods_of_airflow_in_the_mesh_alone_do_not_end() {
    let ns = &scenario("control-airflow", &[MESH]).await;
    let output = run_dag(ns).await;
    // The operator goes on without them, once a payload has ended.
    let pod =
        ns.pod_until("value", "the payload's end", |pod| PodView(pod).exit_code("base").map(|_| pod.clone())).await;
    assert!(PodView(&pod).exit_code(PROXY_CONTAINER).is_none(), "{}", String::from_utf8_lossy(&output.stdout));
    ns.holds_for(Duration::from_secs(20), "payload ended, pod not", async || {
        PodView(&ns.pod("value").await).phase() == "Running"
    })
    .await;
}
