//! Kinds of Kubernetes objects.

/// Names a kind of object: group, version, kind and plural.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(pub &'static str, pub &'static str, pub &'static str, pub &'static str);

/// Pods.
pub const PODS: Kind = Kind("", "v1", "Pod", "pods");
/// Namespaces.
pub const NAMESPACES: Kind = Kind("", "v1", "Namespace", "namespaces");
/// `ConfigMaps`.
pub const CONFIG_MAPS: Kind = Kind("", "v1", "ConfigMap", "configmaps");
/// Deployments.
pub const DEPLOYMENTS: Kind = Kind("apps", "v1", "Deployment", "deployments");
/// Services.
pub const SERVICES: Kind = Kind("", "v1", "Service", "services");
/// `MutatingWebhookConfigurations`.
pub const WEBHOOK_CONFIGURATIONS: Kind =
    Kind("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
/// `ClusterRoles`.
pub const CLUSTER_ROLES: Kind = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles");
/// `RoleBindings`.
pub const ROLE_BINDINGS: Kind = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings");
/// Kubeflow's `PodDefaults`.
pub const POD_DEFAULTS: Kind = Kind("kubeflow.org", "v1alpha1", "PodDefault", "poddefaults");

impl Kind {
    /// Returns `apiVersion` as manifests have it.
    #[must_use]
    pub fn api_version(self) -> String {
        if self.0.is_empty() { self.1.to_owned() } else { format!("{}/{}", self.0, self.1) }
    }
}
