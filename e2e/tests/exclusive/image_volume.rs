//! Delivery by image volume: Kubernetes 1.35 with containerd 2.1, and later.

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{NEEDS_PROXY, pod, pod_spec, shell};
use e2e::webhook_option::{IMAGE_VOLUME, WebhookOption, is_mounted};
use e2e::{PodView, scenario};
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
