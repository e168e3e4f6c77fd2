//! Ray in the pod of a Job: a script, and the daemons and workers that it starts.

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::GREETING;
use e2e::{PodView, scenario};

use crate::clients::{assert_runs_on_without, python_job};
use crate::start_server;

/// Its workers reach a server of the mesh, and so does the script as its last act.
const SCRIPT: &str = "
import ray
from urllib.request import urlopen

@ray.remote
def square(number):
    return urlopen('http://web/').status and number * number

ray.init(num_cpus=2, include_dashboard=False)
print('sum', sum(ray.get([square.remote(number) for number in range(10)])))
ray.shutdown()
print(urlopen('http://web/').read().decode())";

#[tokio::test]
async fn job_of_ray_completes_with_its_script() {
    let ns = &scenario("ray", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    ns.create_object(python_job("squares", &["-c", SCRIPT])).await;
    ns.until_complete("squares").await;
    let name = ns.pod_of_job("squares").await;
    let pod = ns.pod(&name).await;
    let view = PodView(&pod);
    assert_eq!((view.exit_code("main"), view.exit_code(PROXY_CONTAINER)), (Some(0), Some(0)));
    let log = ns.logs(&name, "main").await;
    assert!(log.contains("sum 285") && log.contains(GREETING), "{log}");
}

#[tokio::test]
async fn control_job_of_ray_in_the_mesh_alone_does_not_complete() {
    let ns = &scenario("control-ray", &[MESH]).await;
    start_server(ns).await;
    ns.create_object(python_job("squares", &["-c", SCRIPT])).await;
    let name = ns.pod_of_job("squares").await;
    assert_runs_on_without(ns, &name, "main").await;
}
