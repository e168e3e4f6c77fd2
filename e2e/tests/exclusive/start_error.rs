//! A command that does not exist. Its process lives for some tens of milliseconds, in which a busy node may not let the shim run
//! (docs/limitations.md).

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{container, pod, pod_spec, shell};
use e2e::{PodView, scenario};

#[tokio::test]
async fn missing_command_fails_the_pod_and_ends_the_proxy() {
    let ns = &scenario("start-error", &[MESH, OPT_IN]).await;
    let broken = container("broken", &["/no/such/command"]);
    let pod = ns.run(pod("two", &pod_spec("Never", &[broken, shell("main", "sleep 2")])), "Failed").await;
    let codes = ["broken", "main", PROXY_CONTAINER].map(|container| PodView(&pod).exit_code(container));
    assert_eq!(codes, [Some(128), Some(0), Some(0)]);
}
