//! What only somebody on the node can do to a pod: its sandbox is lost, or the image of its retry.

use contract::names::MODE_ANNOTATION;
use e2e::cluster::{MESH, OPT_IN};
use e2e::kubectl::kubectl;
use e2e::manifests::{NEEDS_PROXY, annotated, payload_image, pod, pod_spec, shell, with_memory};
use e2e::node::ctr_of_kubelet;
use e2e::{Namespace, PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::{ended_once_by_the_kubelet, shim_modes};

#[tokio::test]
async fn pod_whose_sandbox_is_made_again_has_its_network() {
    scenario("sandbox", &[MESH, OPT_IN], async |ns: &Namespace| {
        let script = ended_once_by_the_kubelet();
        for mode in shim_modes() {
            let spec = with_memory(pod_spec("OnFailure", &[shell("main", &script)]));
            ns.create_object(annotated(pod(mode, &spec), MODE_ANNOTATION, mode)).await;
        }
        for mode in shim_modes() {
            ns.pod_until(mode, "main's start", |pod| PodView(pod).runs("main").then_some(())).await;
            let of_pod = format!(
                "labels.\"io.kubernetes.pod.namespace\"=={},labels.\"io.kubernetes.pod.name\"=={mode},labels.\"io.cri-containerd.kind\"==sandbox",
                ns.name()
            );
            let sandbox = ctr_of_kubelet(&["containers", "ls", "-q", &of_pod]);
            drop(ctr_of_kubelet(&["tasks", "kill", "--signal=SIGKILL", sandbox.trim()]));
        }
        for mode in shim_modes() {
            assert_eq!(ns.final_phase(mode).await, "Succeeded", "{mode}");
            let pod = ns.pod(mode).await;
            assert!(PodView(&pod).restarts("main") >= Some(1), "{mode}: {}", PodView(&pod).in_a_line());
        }
    })
    .await;
}

#[tokio::test]
async fn retry_whose_image_comes_late_has_its_network() {
    const LATE: &str = "docker.io/istio-aux-cluster/late:1";
    scenario("late-image", &[MESH, OPT_IN], async |ns: &Namespace| {
        let give_image = || drop(ctr_of_kubelet(&["images", "tag", "--force", &payload_image(), LATE]));
        let script = format!(
            "[ -e /memory/once ] && {{ {NEEDS_PROXY}; exit; }}; until [ -e /memory/go ]; do sleep 0.2; done; touch /memory/once; exit 7"
        );
        give_image();
        for mode in shim_modes() {
            let mut main = shell("main", &script);
            main["image"] = json!(LATE);
            let spec = with_memory(pod_spec("OnFailure", &[main]));
            ns.create_object(annotated(pod(mode, &spec), MODE_ANNOTATION, mode)).await;
        }
        for mode in shim_modes() {
            ns.pod_until(mode, "main's start", |pod| PodView(pod).runs("main").then_some(())).await;
        }
        drop(ctr_of_kubelet(&["images", "rm", LATE]));
        for mode in shim_modes() {
            kubectl(&["-n", ns.name(), "exec", mode, "-c=main", "--", "touch", "/memory/go"]);
            let is_missing = |pod: &Pod| {
                (PodView(pod).waits_for("main") == Some("ImagePullBackOff")).then_some(())
            };
            ns.pod_until(mode, "the image's absence", is_missing).await;
        }
        give_image();
        for mode in shim_modes() {
            assert_eq!(ns.final_phase(mode).await, "Succeeded", "{mode}");
            assert_eq!(PodView(&ns.pod(mode).await).restarts("main"), Some(1), "{mode}");
        }
    })
    .await;
}
