//! The kinds of objects that an installation may consist of.

use contract::kind::{DEPLOYMENTS, Kind, SERVICES, WEBHOOK_CONFIGURATIONS};

const ADMISSION: &str = "admissionregistration.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const MONITORING: &str = "monitoring.coreos.com";
const CERTIFICATES: &str = "cert-manager.io";

/// A kind of an installation's objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstalledKind {
    pub(crate) kind: Kind,
    /// Whether its objects are in a namespace.
    pub(crate) is_namespaced: bool,
}

const fn global(kind: Kind) -> InstalledKind {
    InstalledKind { kind, is_namespaced: false }
}

const fn namespaced(kind: Kind) -> InstalledKind {
    InstalledKind { kind, is_namespaced: true }
}

/// Lists the kinds in the order of removal. The webhook configuration comes first: without a webhook, it rejects pods.
pub(crate) const INSTALLED: [InstalledKind; 20] = [
    global(WEBHOOK_CONFIGURATIONS),
    global(Kind::new(ADMISSION, "v1", "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings")),
    global(Kind::new(ADMISSION, "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies")),
    global(Kind::new(ADMISSION, "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")),
    global(Kind::new(ADMISSION, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies")),
    namespaced(Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")),
    namespaced(DEPLOYMENTS),
    namespaced(SERVICES),
    namespaced(Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")),
    namespaced(Kind::new(MONITORING, "v1", "PodMonitor", "podmonitors")),
    namespaced(Kind::new(MONITORING, "v1", "PrometheusRule", "prometheusrules")),
    namespaced(Kind::new(CERTIFICATES, "v1", "Certificate", "certificates")),
    namespaced(Kind::new(CERTIFICATES, "v1", "Issuer", "issuers")),
    namespaced(Kind::new("coordination.k8s.io", "v1", "Lease", "leases")),
    namespaced(Kind::new("", "v1", "Secret", "secrets")),
    namespaced(Kind::new(RBAC, "v1", "RoleBinding", "rolebindings")),
    namespaced(Kind::new(RBAC, "v1", "Role", "roles")),
    namespaced(Kind::new("", "v1", "ServiceAccount", "serviceaccounts")),
    global(Kind::new(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings")),
    global(Kind::new(RBAC, "v1", "ClusterRole", "clusterroles")),
];
