//! Finds pods whose node cannot pull the shim's image. Pure.

use contract::names::{INSTALL_CONTAINER, SHIM_CONTAINER};
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
    let lists = ["initContainerStatuses", "containerStatuses"].map(|field| pod["status"][field].as_array());
    let mut statuses = lists.into_iter().flatten().flatten();
    statuses.find_map(|status| {
        let reason = status["state"]["waiting"]["reason"].as_str()?;
        let is_the_shims = status["name"] == SHIM_CONTAINER || status["name"] == INSTALL_CONTAINER;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (is_the_shims && REASONS.contains(&reason)).then(|| UnpulledShim {
            pod: format!("{}/{}", text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"])),
            image: text(&status["image"]),
            reason: reason.to_owned(),
        })
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
}
