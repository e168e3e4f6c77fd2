//! An update of istio-aux while pods run on the `ConfigMap` of the version before.

use e2e::cluster::{MESH, OPT_IN};
use e2e::config_map::{config_maps, load_image_with_another_shim, mounted, set_image, until_delivered};
use e2e::manifests::{pod, pod_spec, shell};
use e2e::tenancy::{CONTROLLER, kubectl};
use e2e::ways::LOADED_IMAGES;
use e2e::{Namespace, PodView, scenario};

use crate::switched_on;

/// The images of before, once it is dropped.
struct Updated;

impl Updated {
    fn set(tag: &str) {
        let image = format!("{LOADED_IMAGES}/webhook:{tag}");
        set_image(CONTROLLER.1, "tenancy", &image);
        set_image("istio-aux", "webhook", &image);
    }
}

impl Drop for Updated {
    fn drop(&mut self) {
        Self::set(env!("CARGO_PKG_VERSION"));
    }
}

#[tokio::test]
async fn pods_complete_on_the_config_map_that_they_mounted_and_new_ones_mount_the_new_one() {
    let (_guard, _delivery) = switched_on().await;
    load_image_with_another_shim(&format!("{LOADED_IMAGES}/webhook:other-shim"));
    scenario("update", &[MESH, OPT_IN], async |ns: &Namespace| {
        let old = until_delivered(ns).await;
        let waits = shell("main", "until [ -e /tmp/go ]; do sleep 0.2; done");
        ns.create_object(pod("before", &pod_spec("Never", &[waits]))).await;
        ns.pod_until("before", "the payload's start", |pod| PodView(pod).runs("main").then_some(())).await;

        let updated = Updated;
        // The same version with another binary: the controller comes first, as docs/config-map.md says.
        Updated::set("other-shim");
        let new = ns
            .until("pods to mount the new one", async || Some(until_delivered(ns).await).filter(|name| *name != old))
            .await;
        let mut both = vec![old.clone(), new.clone()];
        both.sort_unstable();
        assert_eq!(config_maps(ns).await, both, "the old one stays");
        let after = pod("after", &pod_spec("Never", &[shell("main", "true")]));
        let made = serde_json::to_value(ns.dry_run(after.clone()).await).expect("a pod is JSON");
        assert_eq!(mounted(&made), Some(new.as_str()));
        assert_eq!(ns.run_pod(after).await.0, "Succeeded");

        kubectl(&["-n", ns.name(), "exec", "before", "-c", "main", "--", "touch", "/tmp/go"]);
        let phase = ns.pod_until("before", "the end", |pod| PodView(pod).final_phase()).await;
        assert_eq!(phase, "Succeeded");
        drop(updated);
    })
    .await;
}
