//! Reads what a check needs of one tenant of Kubeflow: a namespace with one of our labels for tenants, or a profile's.

use contract::kind::Kind;
use contract::kind::{CLUSTER_ROLES, POD_DEFAULTS, ROLE_BINDINGS};
use contract::names::{
    ACCESS_PIPELINES_LABEL, AMBIENT_LABEL, ISTIO_INJECT, MESH_LABEL, NODE_RUNTIME_CLASS, NOTEBOOK_LABEL,
    PIPELINES_ROLE, PIPELINES_TOKEN_DIR, PIPELINES_TOKEN_LABEL, TENANCY_LABEL,
};
use inject::tenancy::desired::DesiredTenancy;
use kube::Client;
use kube::api::ListParams;
use serde_json::Value;

use super::snapshot::note;
use crate::pods::{entries, is_proxy, label};
use crate::read;

/// Istio before 1.22 has no v1 of `PeerAuthentication`.
const SECURITY: &str = "v1beta1";
const AUTHORIZATION_POLICIES: Kind =
    Kind::new("security.istio.io", SECURITY, "AuthorizationPolicy", "authorizationpolicies");
const PEER_AUTHENTICATIONS: Kind =
    Kind::new("security.istio.io", SECURITY, "PeerAuthentication", "peerauthentications");
/// Is the label, with its value, that the profile controller gives its namespaces.
const PROFILE: (&str, &str) = ("app.kubernetes.io/part-of", "kubeflow-profile");

/// Holds the objects of a tenant's namespace. What could not be read is `None` or empty.
#[derive(Debug, Default)]
pub(super) struct Tenant {
    /// Is true if the role that the namespace asks for exists.
    pub(super) has_role: Option<bool>,
    pub(super) role_bindings: Option<Vec<Value>>,
    pub(super) pod_default: Option<Value>,
    /// Has the `AuthorizationPolicies` of the namespace.
    pub(super) policies: Vec<Value>,
    pub(super) peer_authentications: Vec<Value>,
}

/// Returns true if a namespace is a tenant's.
pub(super) fn is_tenant(namespace: &Value) -> bool {
    let ours = [TENANCY_LABEL, PIPELINES_TOKEN_LABEL, MESH_LABEL];
    ours.into_iter().any(|key| label(namespace, key).is_some()) || label(namespace, PROFILE.0) == Some(PROFILE.1)
}

/// Returns what a namespace asks for.
pub(super) fn desired_tenancy_of(namespace: &Value) -> DesiredTenancy {
    DesiredTenancy::of(&entries(namespace, "labels"), &entries(namespace, "annotations"))
}

/// Reads a tenant. What could not be read is added to the list.
pub(super) async fn read(client: &Client, found: &Value, namespace: &str, unreadable: &mut Vec<String>) -> Tenant {
    let role = match desired_tenancy_of(found) {
        DesiredTenancy::Objects { role, .. } => role,
        _ => PIPELINES_ROLE.to_owned(),
    };
    let role = read::get(client, CLUSTER_ROLES, None, &role).await;
    let bindings = read::list(client, ROLE_BINDINGS, Some(namespace), &ListParams::default()).await;
    let pod_default = read::get(client, POD_DEFAULTS, Some(namespace), ACCESS_PIPELINES_LABEL).await;
    let all = ListParams::default();
    let policies = read::list_if_served(client, AUTHORIZATION_POLICIES, Some(namespace), &all).await;
    let peer_authentications = read::list_if_served(client, PEER_AUTHENTICATIONS, Some(namespace), &all).await;
    Tenant {
        has_role: note(unreadable, role).map(|role| role.is_some()),
        role_bindings: note(unreadable, bindings),
        pod_default: note(unreadable, pod_default).flatten(),
        policies: note(unreadable, policies).unwrap_or_default(),
        peer_authentications: note(unreadable, peer_authentications).unwrap_or_default(),
    }
}

/// Holds what matters of a tenant's pod that runs to completion, or of a notebook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TenantPod {
    pub(super) name: String,
    pub(super) account: String,
    /// Is true if it runs to completion without a proxy, in the pod or on its node, and its labels do not ask for that.
    pub(super) lacks_proxy: bool,
    pub(super) has_token: bool,
}

impl TenantPod {
    /// Returns the facts of a pod; `None` if it is neither.
    pub(super) fn of(pod: &Value) -> Option<Self> {
        let spec = &pod["spec"];
        let runs_to_completion = spec["restartPolicy"] != "Always";
        if !runs_to_completion && label(pod, NOTEBOOK_LABEL).is_none() {
            return None;
        }
        let list = |field: &str| spec[field].as_array().map_or(&[][..], Vec::as_slice);
        let mounts = list("containers").iter().filter_map(|container| container["volumeMounts"].as_array()).flatten();
        let has_proxy = spec["runtimeClassName"] == NODE_RUNTIME_CLASS
            || list("containers").iter().chain(list("initContainers")).any(is_proxy);
        let has_chosen = label(pod, ISTIO_INJECT) == Some("false") || label(pod, AMBIENT_LABEL) == Some("ambient");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(Self {
            name: text(&pod["metadata"]["name"]),
            account: spec["serviceAccountName"].as_str().unwrap_or("default").to_owned(),
            lacks_proxy: runs_to_completion && !has_proxy && !has_chosen,
            has_token: mounts.into_iter().any(|mount| mount["mountPath"] == PIPELINES_TOKEN_DIR),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::fixtures::labelled;
    use serde_json::json;

    #[test]
    fn tenant_is_a_profile_or_has_our_labels() {
        assert!(is_tenant(&labelled("team", &json!({"app.kubernetes.io/part-of": "kubeflow-profile"}))));
        assert!(is_tenant(&labelled("team", &json!({"istio-aux.io/mesh": "typo"}))));
        assert!(!is_tenant(&labelled("team", &json!({"istio-aux.io/injection": "enabled"}))));
    }

    #[test]
    fn long_running_pods_are_skipped_except_notebooks() {
        let pod = |policy: &str, labels: Value| {
            TenantPod::of(&json!({"metadata": {"name": "p", "labels": labels}, "spec": {"restartPolicy": policy,
                "containers": [{"name": "main", "volumeMounts": [{"mountPath": PIPELINES_TOKEN_DIR}]}, {"name": "istio-proxy"}]}}))
        };
        assert_eq!(pod("Always", json!({})), None);
        let notebook = pod("Always", json!({"notebook-name": "n"})).unwrap();
        assert!(notebook.has_token && !notebook.lacks_proxy);
        let job = pod("Never", json!({})).unwrap();
        assert_eq!((&*job.account, job.lacks_proxy), ("default", false));
    }

    #[test]
    fn pod_lacks_a_proxy_unless_it_runs_on_its_node_or_its_labels_ask_for_that() {
        let lacks_proxy = |policy: &str, labels: Value, class: Value| {
            let metadata = json!({"name": "p", "labels": labels});
            let spec = json!({"restartPolicy": policy, "runtimeClassName": class, "containers": [{"name": "main"}]});
            TenantPod::of(&json!({"metadata": metadata, "spec": spec})).unwrap().lacks_proxy
        };
        assert!(lacks_proxy("Never", json!({}), json!(null)));
        assert!(lacks_proxy("OnFailure", json!({}), json!("gvisor")));
        assert!(!lacks_proxy("Always", json!({"notebook-name": "n"}), json!(null)));
        assert!(!lacks_proxy("Never", json!({}), json!("istio-aux")));
        assert!(!lacks_proxy("Never", json!({"sidecar.istio.io/inject": "false"}), json!(null)));
        assert!(!lacks_proxy("Never", json!({"istio.io/dataplane-mode": "ambient"}), json!(null)));
    }
}
