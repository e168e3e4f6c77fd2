//! A cluster of Dask as Jobs: a scheduler, two workers, and a client that computes with them and shuts them down.

use std::time::Duration;

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::{Namespace, PodView, has_condition, scenario};
use serde_json::{Value, json};

use crate::clients::python_job;

const CLIENT: &str = "
from dask.distributed import Client
client = Client('tcp://scheduler:8786', timeout='120s')
client.wait_for_workers(2)
print('sum', sum(client.gather(client.map(lambda n: n * n, range(10)))))
client.shutdown()";

/// Creates the Jobs, and the Service by which workers and client find the scheduler. Through a proxy, a scheduler that is not there
/// yet is one that closes the connection, so it comes first.
async fn start(ns: &Namespace) -> [Value; 3] {
    let mut workers = python_job("workers", &["-m", "dask", "worker", "tcp://scheduler:8786", "--no-dashboard"]);
    workers["spec"]["parallelism"] = json!(2);
    workers["spec"]["completions"] = json!(2);
    let mut scheduler = python_job("scheduler", &["-m", "dask", "scheduler", "--no-dashboard"]);
    scheduler["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] =
        json!({"tcpSocket": {"port": 8786}, "periodSeconds": 1});
    let jobs = [scheduler, workers, python_job("client", &["-c", CLIENT])];
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "scheduler"},
        "spec": {"selector": {"job-name": "scheduler"}, "ports": [{"name": "tcp-dask", "port": 8786}]},
    });
    ns.create_objects([service, jobs[0].clone()]).await;
    ns.until_a_pod("job-name=scheduler", "readiness", |pod| pod.is_ready("main")).await;
    ns.create_objects(jobs[1..].to_vec()).await;
    jobs
}

#[tokio::test]
async fn jobs_of_dask_complete_once_their_client_shuts_them_down() {
    let ns = &scenario("dask", &[MESH, OPT_IN]).await;
    for job in &start(ns).await {
        ns.until_within(Duration::from_mins(5), "the Job's completion", async || {
            has_condition(&ns.get(job).await, "Complete").then_some(())
        })
        .await;
    }
    let pods = ns.pods_with("job-name in (client, scheduler, workers)").await;
    assert_eq!(pods.len(), 4);
    for pod in &pods {
        let view = PodView(pod);
        assert_eq!(
            (view.exit_code("main"), view.exit_code(PROXY_CONTAINER)),
            (Some(0), Some(0)),
            "{}",
            view.in_a_line()
        );
    }
    let client = ns.pods_with("job-name=client").await.remove(0);
    assert!(ns.logs(&client.metadata.name.expect("it has a name"), "main").await.contains("sum 285"));
}

#[tokio::test]
async fn control_jobs_of_dask_in_the_mesh_alone_do_not_complete() {
    let ns = &scenario("control-dask", &[MESH]).await;
    start(ns).await;
    ns.until_a_pod("job-name=client", "the payload's end", |pod| pod.exit_code("main").is_some()).await;
    ns.holds_for(Duration::from_secs(20), "payload ended, pod not", async || {
        ns.pods_with("job-name=client").await.iter().all(|pod| PodView(pod).phase() == "Running")
    })
    .await;
}
