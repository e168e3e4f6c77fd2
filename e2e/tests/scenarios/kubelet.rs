//! What only somebody on the node can do to a pod: its sandbox is lost, or the image of its retry.

use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{NEEDS_PROXY, in_modes, payload_image, pod_spec, shell, with_memory};
use e2e::node::ctr_of_kubelet;
use e2e::{PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::{ended_once_by_the_kubelet, shim_modes, until_first_attempt};

#[tokio::test]
async fn pod_whose_sandbox_is_made_again_has_its_network() {
    let ns = &scenario("sandbox", &[MESH, OPT_IN]).await;
    let spec = with_memory(pod_spec("OnFailure", &[shell("main", &ended_once_by_the_kubelet())]));
    ns.create_objects(in_modes(&shim_modes(), &spec)).await;
    for mode in shim_modes() {
        until_first_attempt(ns, mode).await;
        let of_pod = format!(
            "labels.\"io.kubernetes.pod.namespace\"=={},labels.\"io.kubernetes.pod.name\"=={mode},labels.\"io.cri-containerd.kind\"==sandbox",
            ns.name()
        );
        let sandbox = ctr_of_kubelet(&["containers", "ls", "-q", &of_pod]);
        ctr_of_kubelet(&["tasks", "kill", "--signal=SIGKILL", sandbox.trim()]);
    }
    for mode in shim_modes() {
        let pod = ns.until_ended(mode, "Succeeded").await;
        assert!(PodView(&pod).restarts("main") >= Some(1), "{mode}: {}", PodView(&pod).in_a_line());
    }
}

#[tokio::test]
async fn retry_whose_image_comes_late_has_its_network() {
    // Nothing listens there, so that a pull fails at once: the kubelet makes one at a time.
    const LATE: &str = "127.0.0.1:1/istio-aux-cluster/late:1";
    let ns = &scenario("late-image", &[MESH, OPT_IN]).await;
    let give_image = || ctr_of_kubelet(&["images", "tag", "--force", &payload_image(), LATE]);
    let script = format!(
        "[ -e /memory/once ] && {{ {NEEDS_PROXY}; exit; }}; until [ -e /memory/go ]; do sleep 0.2; done; touch /memory/once; exit 7"
    );
    give_image();
    let mut main = shell("main", &script);
    main["image"] = json!(LATE);
    ns.create_objects(in_modes(&shim_modes(), &with_memory(pod_spec("OnFailure", &[main])))).await;
    for mode in shim_modes() {
        ns.pod_until(mode, "main's start", |pod| PodView(pod).runs("main").then_some(())).await;
    }
    ctr_of_kubelet(&["images", "rm", LATE]);
    for mode in shim_modes() {
        ns.exec(mode, "main", &["touch", "/memory/go"]);
    }
    // The kubelet says so for a moment only, between two times of back-off that it calls CrashLoopBackOff.
    let is_missing =
        |pod: &Pod| matches!(PodView(pod).waits_for("main"), Some("ErrImagePull" | "ImagePullBackOff")).then_some(());
    let absences = shim_modes().into_iter().map(|mode| ns.pod_until(mode, "the image's absence", is_missing));
    futures::future::join_all(absences).await;
    give_image();
    for mode in shim_modes() {
        let pod = ns.until_ended(mode, "Succeeded").await;
        assert_eq!(PodView(&pod).restarts("main"), Some(1), "{mode}");
    }
}
