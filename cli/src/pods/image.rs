//! Finds pods whose node cannot pull the shim's image. Pure.

use contract::names::{INSTALL_CONTAINER, SHIM_CONTAINER, SHIM_VOLUME};
use serde_json::Value;

/// Lists the kubelet's reasons for a container that waits for its image (kubernetes, pkg/kubelet/images/types.go).
const REASONS: [&str; 4] = ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"];

/// Holds a pod that waits for the shim's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnpulledShim {
    /// Is namespace and name.
    pub(crate) pod: String,
    pub(crate) image: String,
    /// Is the kubelet's word for why.
    pub(crate) reason: String,
}

/// Returns what the kubelet reports of a pod whose node cannot pull the shim's image.
pub(crate) fn unpulled_shim(pod: &Value) -> Option<UnpulledShim> {
    let volumes = pod["spec"]["volumes"].as_array();
    let volume = volumes.into_iter().flatten().find(|volume| volume["name"] == SHIM_VOLUME);
    let mounted = volume.and_then(|volume| volume["image"]["reference"].as_str());
    let lists = ["initContainerStatuses", "containerStatuses"].map(|field| pod["status"][field].as_array());
    let mut statuses = lists.into_iter().flatten().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    statuses.find_map(|status| {
        let waiting = &status["state"]["waiting"];
        let reason = waiting["reason"].as_str().filter(|reason| REASONS.contains(reason))?.to_owned();
        let image = if status["name"] == SHIM_CONTAINER || status["name"] == INSTALL_CONTAINER {
            text(&status["image"])
        } else {
            // The container that mounts the image waits for it, and for its own.
            mounted.filter(|image| waiting["message"].as_str().is_some_and(|text| text.contains(image)))?.to_owned()
        };
        let pod = format!("{}/{}", text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
        Some(UnpulledShim { pod, image, reason })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_that_waits_for_the_shims_image_is_found() {
        let pod = |name: &str, reason: &str| {
            let status = json!({"name": name, "image": "r/shim:1", "state": {"waiting": {"reason": reason}}});
            json!({"metadata": {"namespace": "team", "name": "a"}, "status": {"initContainerStatuses": [status]}})
        };
        let cases = [
            (SHIM_CONTAINER, "ErrImagePull", true),
            (INSTALL_CONTAINER, "ImagePullBackOff", true),
            (SHIM_CONTAINER, "PodInitializing", false),
            ("main", "ErrImagePull", false),
        ];
        for (name, reason, is_found) in cases {
            let found = UnpulledShim { pod: "team/a".into(), image: "r/shim:1".into(), reason: reason.into() };
            assert_eq!(unpulled_shim(&pod(name, reason)), is_found.then_some(found), "{name} {reason}");
        }
        assert_eq!(unpulled_shim(&json!({})), None);
    }

    #[test]
    fn container_that_waits_for_the_shims_image_as_a_volume_is_found() {
        let pod = |pulled: &str| {
            let waiting =
                json!({"reason": "ImagePullBackOff", "message": format!("Back-off pulling image \"{pulled}\": no")});
            json!({
                "metadata": {"namespace": "team", "name": "a"},
                "spec": {"volumes": [{"name": "other"}, {"name": "istio-aux", "image": {"reference": "r/shim:1"}}]},
                "status": {"containerStatuses": [{"name": "istio-proxy", "image": "r/proxy:1", "state": {"waiting": waiting}}]},
            })
        };
        let reason = "ImagePullBackOff".into();
        let found = UnpulledShim { pod: "team/a".into(), image: "r/shim:1".into(), reason };
        assert_eq!(unpulled_shim(&pod("r/shim:1")), Some(found));
        assert_eq!(unpulled_shim(&pod("r/proxy:1")), None, "the proxy's own image");
    }
}
