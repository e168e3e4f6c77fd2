//! What a busy node may not let the shim see in time (docs/limitations.md): a start, and a command that does not exist, whose process
//! lives for some tens of milliseconds.

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{LEGACY_OPT_IN, MESH, OPT_IN, told_code};
use e2e::manifests::{container, pod, pod_spec, shell};
use e2e::{Outcome, PodView, scenario};

#[tokio::test]
async fn end_is_known_by_the_exit() {
    for (name, opt_in) in [("exit", OPT_IN), ("exit-legacy", LEGACY_OPT_IN)] {
        let ns = &scenario(name, &[MESH, opt_in]).await;
        let pod = ns.run(pod("one", &pod_spec("Never", &[shell("main", "sleep 2")])), "Succeeded").await;
        let asked = "http://127.0.0.1:15020/quitquitquit";
        let codes = &*format!("main={}", told_code(0));
        assert_eq!(PodView(&pod).outcome(), Some(Outcome { codes, known_by: "exit", asked }));
    }
}

#[tokio::test]
async fn missing_command_fails_the_pod_and_ends_the_proxy() {
    let ns = &scenario("start-error", &[MESH, OPT_IN]).await;
    let broken = container("broken", &["/no/such/command"]);
    let pod = ns.run(pod("two", &pod_spec("Never", &[broken, shell("main", "sleep 2")])), "Failed").await;
    let codes = ["broken", "main", PROXY_CONTAINER].map(|container| PodView(&pod).exit_code(container));
    assert_eq!(codes, [Some(128), Some(0), Some(0)]);
}
