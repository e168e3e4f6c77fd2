//! Kinds of Kubernetes objects.

/// Names a kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Holds the API group; empty for the core group.
    pub group: &'static str,
    /// Holds the version of the group.
    pub version: &'static str,
    /// Holds the name in CamelCase, as manifests have it.
    pub name: &'static str,
    /// Holds the plural in lower case, as URLs and rights have it.
    pub plural: &'static str,
}

/// Pods.
pub const PODS: Kind = Kind::new("", "v1", "Pod", "pods");
/// Namespaces.
pub const NAMESPACES: Kind = Kind::new("", "v1", "Namespace", "namespaces");
/// Deployments.
pub const DEPLOYMENTS: Kind = Kind::new("apps", "v1", "Deployment", "deployments");
/// Services.
pub const SERVICES: Kind = Kind::new("", "v1", "Service", "services");
/// `MutatingWebhookConfigurations`.
pub const WEBHOOK_CONFIGURATIONS: Kind =
    Kind::new("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
/// `ClusterRoles`.
pub const CLUSTER_ROLES: Kind = Kind::new("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles");
/// `RoleBindings`.
pub const ROLE_BINDINGS: Kind = Kind::new("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings");
/// Kubeflow's `PodDefaults`.
pub const POD_DEFAULTS: Kind = Kind::new("kubeflow.org", "v1alpha1", "PodDefault", "poddefaults");

impl Kind {
    /// Returns the kind of this group, version, name and plural.
    #[must_use]
    pub const fn new(group: &'static str, version: &'static str, name: &'static str, plural: &'static str) -> Self {
        Self { group, version, name, plural }
    }

    /// Returns `apiVersion` as manifests have it.
    #[must_use]
    pub fn api_version(self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}
