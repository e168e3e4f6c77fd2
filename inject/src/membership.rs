//! Pods of a Juju model that join the mesh, or stay out of it, by labels of their own, since their namespace has none.

use contract::names::{
    AMBIENT_LABEL, CHARM_INIT_CONTAINER, CONTROLLER_PORT, ENABLED, EXCLUDED_PORTS_ANNOTATION, INJECTION_LABEL,
    ISTIO_INJECT, NOT_AMBIENT,
};

use crate::Decision;
use crate::facts::pod::Pod;
use crate::patch::PatchBuilder;

/// Labels a pod so that Istio and istio-aux inject into it. Labels of the pod's own stand. With istio-cni, connections of a
/// charm's init container to its controller would end at a proxy that does not run yet (istio#23802), so they bypass it.
#[must_use]
pub fn join(pod: &Pod) -> Decision {
    let mut patch = PatchBuilder::new(pod);
    patch.default_label(ISTIO_INJECT, "true");
    patch.default_label(INJECTION_LABEL, ENABLED);
    let is_charms = pod.spec.init_containers.iter().flatten().any(|container| container.is_named(CHARM_INIT_CONTAINER));
    let excluded = pod.annotation(EXCLUDED_PORTS_ANNOTATION).unwrap_or_default();
    if is_charms && !excluded.split(',').any(|port| port.trim() == CONTROLLER_PORT) {
        let separator = if excluded.is_empty() { "" } else { "," };
        patch.annotation(EXCLUDED_PORTS_ANNOTATION, &format!("{excluded}{separator}{CONTROLLER_PORT}"));
    }
    Decision::without_shim(patch.finish(), "the pod joins the mesh")
}

/// Labels a pod so that it stays out of the mesh. Labels of the pod's own stand.
#[must_use]
pub fn stay_out(pod: &Pod) -> Decision {
    let mut patch = PatchBuilder::new(pod);
    patch.default_label(ISTIO_INJECT, "false");
    patch.default_label(AMBIENT_LABEL, NOT_AMBIENT);
    Decision::without_shim(patch.finish(), "the pod stays out of the mesh")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn decided(decide: fn(&Pod) -> Decision, pod: Value) -> Value {
        crate::decided(decide, pod).0["metadata"].clone()
    }

    #[test]
    fn pod_joins_by_its_labels() {
        let labels = json!({"sidecar.istio.io/inject": "true", "istio-aux.io/injection": "enabled"});
        let plain = json!({"metadata": {}, "spec": {"containers": []}});
        assert_eq!(decided(join, plain), json!({"labels": labels}));
        let own = json!({"sidecar.istio.io/inject": "false", "istio-aux.io/injection": "disabled"});
        let decides = json!({"metadata": {"labels": own}, "spec": {"containers": []}});
        assert_eq!(decided(join, decides), json!({"labels": own}));
    }

    #[test]
    fn charms_pod_reaches_its_controller() {
        for (before, after) in [(json!({}), "17070"), (json!({EXCLUDED_PORTS_ANNOTATION: "5432"}), "5432,17070")] {
            let charm = json!({
                "metadata": {"annotations": before},
                "spec": {"containers": [], "initContainers": [{"name": "charm-init"}]},
            });
            assert_eq!(decided(join, charm)["annotations"], json!({EXCLUDED_PORTS_ANNOTATION: after}));
        }
    }

    #[test]
    fn model_operator_stays_out() {
        let operator =
            json!({"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}, "spec": {"containers": []}});
        let labels = json!({"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "ambient"});
        assert_eq!(decided(stay_out, operator), json!({"labels": labels}));
        let plain = decided(stay_out, json!({"metadata": {}, "spec": {"containers": []}}));
        assert_eq!(plain["labels"], json!({"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}));
    }
}
