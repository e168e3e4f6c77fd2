//! Delivery by image volume: Kubernetes 1.35 with containerd 2.1, and later.

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::{printed, run};
use e2e::install_methods::BINARY;
use e2e::manifests::{NEEDS_PROXY, pod, pod_spec, shell};
use e2e::webhook_option::{IMAGE_VOLUME, WebhookOption, is_mounted};
use e2e::{PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

#[tokio::test]
async fn shim_in_an_image_volume_ends_the_pod() {
    let ns = &scenario("image-volume", &[MESH, OPT_IN]).await;
    let _delivery = WebhookOption::set(&[IMAGE_VOLUME]);
    let main = format!("sleep 1; {NEEDS_PROXY}");
    let pod = ns.run(pod("one", &pod_spec("Never", &[shell("main", &main)])), "Succeeded").await;
    assert!(is_mounted(&json!(pod)), "the image is its volume");
    let spec = pod.spec.as_ref().expect("a pod has a spec");
    let init: Vec<&str> = spec.init_containers.iter().flatten().map(|container| container.name.as_str()).collect();
    assert_eq!(init, ["istio-init"], "nothing is copied");
    assert_eq!(PodView(&pod).shim_mode(), Some("proxy"));
    assert_eq!(PodView(&pod).exit_code(PROXY_CONTAINER), Some(0));
}

#[tokio::test]
async fn check_names_a_pod_whose_image_volume_cannot_be_pulled() {
    let ns = &scenario("image-volume-unpulled", &[MESH, OPT_IN]).await;
    // A registry that refuses connections at once: the kubelet pulls one image at a time.
    let image = "127.0.0.1:1/none:1";
    let _delivery = WebhookOption::set(&[IMAGE_VOLUME, &format!("--shim-image={image}")]);
    ns.create_object(pod("one", &pod_spec("Never", &[shell("main", "true")]))).await;
    let reasons = ["ErrImagePull", "ImagePullBackOff"];
    let waits = |pod: &Pod| PodView(pod).waits_for(PROXY_CONTAINER).is_some_and(|reason| reasons.contains(&reason));
    ns.pod_until("one", "the kubelet's report", |pod| waits(pod).then_some(())).await;
    let checked = run(BINARY, &["check", "-n", ns.name()], "");
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    let finding = |reason: &str| format!("pods wait for the shim's image {image} ({reason}): {}/one", ns.name());
    assert!(reasons.into_iter().any(|reason| text.contains(&finding(reason))), "{text}");
}

#[tokio::test]
async fn check_tries_an_image_volume_on_each_kind_of_node() {
    let ns = &scenario("image-volume-probe", &[]).await;
    let text = printed(&run(BINARY, &["check", "--probe", "-n", ns.name()], ""));
    assert!(text.contains("runs the shim from an image volume (tried on "), "{text}");
    ns.until("its pod to go", async || ns.pods_with("").await.is_empty().then_some(())).await;
}
