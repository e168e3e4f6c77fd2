//! The node's own daemons started again while pods run: on the one-node cluster only, and alone on it.

use std::process::Command;

use contract::names::{MODE_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::{Namespace, PodView, scenario};

fn restart(daemon: &str) {
    let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/cluster");
    let status = Command::new(cluster).args(["restart", daemon]).status().expect("the cluster's command runs");
    assert!(status.success(), "{daemon} is started again");
}

/// Pods of each mode whose payloads run while a daemon is started again, and end after it.
async fn pods_complete_over_a_restart_of(daemon: &str) {
    scenario(&format!("restart-{daemon}"), &[MESH, OPT_IN], async |ns: &Namespace| {
        let modes = ["native", "proxy", "wrap"];
        for mode in modes {
            let containers = [shell("main", "sleep 15; exit 3"), shell("short", "sleep 1")];
            ns.create_object(annotated(pod(mode, &pod_spec("Never", &containers)), MODE_ANNOTATION, mode)).await;
        }
        for mode in modes {
            ns.pod_until(mode, "main's start", |pod| PodView(pod).container("main")?.started?.then_some(())).await;
            // A container that ends while containerd is away has 255 for its code, whatever it was.
            ns.pod_until(mode, "the end of short", |pod| PodView(pod).exit_code("short")).await;
        }
        restart(daemon);
        for mode in modes {
            ns.pod_until(mode, "the end", |pod| PodView(pod).final_phase()).await;
            let pod = ns.pod(mode).await;
            let view = PodView(&pod);
            for (container, code) in [("main", 3), ("short", 0), (PROXY_CONTAINER, 0)] {
                assert_eq!(view.exit_code(container), Some(code), "{mode} {container}");
            }
            assert_eq!(view.restarts(SHIM_CONTAINER).unwrap_or_default(), 0, "{mode}");
        }
    })
    .await;
}

#[tokio::test]
async fn pods_complete_over_a_restart_of_the_node() {
    for daemon in ["kubelet", "containerd"] {
        pods_complete_over_a_restart_of(daemon).await;
    }
}
