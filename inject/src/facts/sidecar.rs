//! The kind of Istio's proxy in a pod.

use contract::names::{
    GATEWAY_NAME_LABEL, ISTIO_STATUS_ANNOTATION, MANAGED_GATEWAY_LABEL, PROXY_CONTAINER, TEMPLATES_ANNOTATION,
};
use serde::Deserialize;

use super::pod::{Container, Pod};

/// The kind of Istio's proxy in a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sidecar {
    /// The pod has no proxy, or not yet.
    None,
    /// The pod has a container istio-proxy that Istio's injector has not rendered: the user's own settings, which the
    /// injector merges into its proxy ("Customizing injection" in Istio's documentation).
    Customised,
    /// A regular container: the pod ends only when it does.
    Classic {
        /// Its index among the regular containers.
        index: usize,
    },
    /// A native sidecar (KEP-753): the kubelet ends it.
    Native,
    /// A gateway or waypoint: the proxy is the pod's purpose.
    Gateway,
}

impl Sidecar {
    /// Returns the kind that a pod has.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let is_proxy = |container: &Container| container.is_named(PROXY_CONTAINER);
        let mut init = pod.spec.init_containers.iter().flatten();
        let regular = pod.spec.containers.iter().position(is_proxy);
        let native = init.find(|container| is_proxy(container));
        if is_gateway(pod) {
            Self::Gateway
        } else if regular.is_none() && native.is_none() {
            Self::None
        } else if [regular.map(|index| &pod.spec.containers[index]), native]
            .into_iter()
            .flatten()
            .any(Container::has_auto_image)
        {
            Self::Customised
        } else {
            let status = pod.annotation(ISTIO_STATUS_ANNOTATION).map(serde_json::from_str::<InjectionStatus>);
            let InjectionStatus { containers, init_containers } = status.and_then(Result::ok).unwrap_or_default();
            let has_proxy = |list: Option<Vec<String>>| list.into_iter().flatten().any(|name| name == PROXY_CONTAINER);
            let (is_regular, is_init) = (has_proxy(containers), has_proxy(init_containers));
            match (regular, native) {
                (Some(index), _) if is_regular => Self::Classic { index },
                (_, Some(proxy)) if is_init && proxy.is_native_sidecar() => Self::Native,
                _ => Self::Customised,
            }
        }
    }
}

/// Returns true for gateways and waypoints of the Kubernetes Gateway API, which have labels, and for gateways that the injector
/// renders, which have a template.
fn is_gateway(pod: &Pod) -> bool {
    const TEMPLATES: [&str; 3] = ["gateway", "kube-gateway", "waypoint"];
    [GATEWAY_NAME_LABEL, MANAGED_GATEWAY_LABEL].into_iter().any(|label| pod.label(label).is_some())
        || pod
            .annotation(TEMPLATES_ANNOTATION)
            .is_some_and(|templates| templates.split(',').any(|template| TEMPLATES.contains(&template.trim())))
}

/// The injector's status: the names that it has rendered.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct InjectionStatus {
    containers: Option<Vec<String>>,
    init_containers: Option<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn proxy_among_the_init_containers_is_native_only_if_it_restarts_always() {
        let of = |policy: Option<&str>| {
            let status = r#"{"initContainers": ["istio-init", "istio-proxy"], "containers": null}"#;
            let pod = json!({
                "metadata": {"annotations": {"sidecar.istio.io/status": status}},
                "spec": {"containers": [], "initContainers": [{"name": "istio-proxy", "restartPolicy": policy}]},
            });
            Sidecar::of(&serde_json::from_value(pod).unwrap())
        };
        assert_eq!(of(Some("Always")), Sidecar::Native);
        assert_eq!(of(Some("OnFailure")), Sidecar::Customised);
        assert_eq!(of(None), Sidecar::Customised);
    }
}
