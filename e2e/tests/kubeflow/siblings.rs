//! Containers beside the payload that never end by themselves (docs/limitations.md).

use std::time::Duration;

use contract::names::{PROXY_CONTAINER, QUIT_ANNOTATION, WAIT_FOR_ANNOTATION};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{annotated, job, pod_spec, shell};
use e2e::{PodView, has_condition, scenario};
use serde_json::Value;

/// Serves as the Cloud SQL Auth Proxy 2 does with `--quitquitquit`: a database's port, and an admin port whose `POST /quitquitquit` ends
/// it.
fn cloud_sql_proxy() -> Value {
    let database = "while :; do echo ready for queries | nc -l -p 5432; done & database=$!";
    let admin = r"printf 'HTTP/1.1 200 OK\r\n\r\n' | nc -l -p 9091 > /tmp/asked";
    let asked = "grep -q '^POST /quitquitquit ' /tmp/asked && kill $database && echo asked to quit";
    shell("cloud-sql-proxy", &format!("{database}\n{admin}\n{asked}"))
}

fn client() -> Value {
    shell("main", "until nc 127.0.0.1 5432 < /dev/null | grep -q ready; do sleep 0.2; done")
}

fn log_shipper() -> Value {
    shell("shipper", "exec tail -f /dev/null")
}

/// Returns a Job that ends with `main`, and asks the proxy of its database to quit.
fn job_with_a_database() -> Value {
    let job = job("sync", &pod_spec("OnFailure", &[client(), cloud_sql_proxy()]));
    let job = annotated(job, WAIT_FOR_ANNOTATION, "main");
    annotated(job, QUIT_ANNOTATION, "http://127.0.0.1:9091/quitquitquit")
}

pub(crate) async fn control_cloud_sql_proxy_keeps_a_job_of_the_mesh() {
    let ns = &scenario("control-sql", &[MESH]).await;
    ns.create_object(job_with_a_database()).await;
    let pod = ns.pod_of_job("sync").await;
    ns.pod_until(&pod, "the client's end", |pod| PodView(pod).exit_code("main")).await;
    ns.holds_for(Duration::from_secs(15), "both proxies run", async || {
        let now = ns.pod(&pod).await;
        PodView(&now).runs("cloud-sql-proxy") && PodView(&now).runs(PROXY_CONTAINER)
    })
    .await;
}

pub(crate) async fn cloud_sql_proxy_is_asked_to_quit() {
    let ns = &scenario("sql", &[MESH, OPT_IN]).await;
    ns.create_object(job_with_a_database()).await;
    ns.until_complete("sync").await;
    let pod = ns.pod_of_job("sync").await;
    assert_eq!(PodView(&ns.pod(&pod).await).exit_code("cloud-sql-proxy"), Some(0));
    assert!(ns.logs(&pod, "cloud-sql-proxy").await.contains("asked to quit"));
}

/// Nothing outside of its container may end it: a limit (docs/limitations.md).
pub(crate) async fn log_shipper_without_endpoint_keeps_the_pod() {
    let ns = &scenario("shipper", &[MESH, OPT_IN]).await;
    let job = job("ship", &pod_spec("Never", &[shell("main", "sleep 1"), log_shipper()]));
    let job = annotated(job, WAIT_FOR_ANNOTATION, "main");
    ns.create_object(job.clone()).await;
    let pod = ns.pod_of_job("ship").await;
    ns.pod_until(&pod, "the proxy's end", |pod| PodView(pod).exit_code(PROXY_CONTAINER)).await;
    ns.holds_for(Duration::from_secs(5), "the shipper runs on", async || {
        PodView(&ns.pod(&pod).await).runs("shipper") && !has_condition(&ns.get(&job).await, "Complete")
    })
    .await;
}
