"""Labels, annotations and names that the charm shares with the webhook, with Istio and with Juju.

A unit test compares the webhook's own with `contract/src/names.rs`.
"""

INJECTION_LABEL = "istio-aux.io/injection"
LEGACY_INJECTION_LABEL = "io.datastrophic/istio-aux"
ENABLED = "enabled"
DISABLED = "disabled"
MODE_ANNOTATION = "istio-aux.io/mode"
STATUS_ANNOTATION = "istio-aux.io/status"
SHIM_LABEL = "istio-aux.io/shim"

TENANCY_MANAGER = "istio-aux-tenancy"
"""Value of `app.kubernetes.io/managed-by` on the tenancy controller's objects in tenants' namespaces."""

PROXY_CONTAINER = "istio-proxy"
PROXY_CONFIG_ANNOTATION = "proxy.istio.io/config"
HOLD_FIELD = "holdApplicationUntilProxyStarts"
ISTIO_INJECT = "sidecar.istio.io/inject"
ISTIO_TEMPLATES = "inject.istio.io/templates"
ISTIO_INJECTION_LABEL = "istio-injection"
ISTIO_REVISION_LABEL = "istio.io/rev"
ISTIO_CHARMS = ("istio", "istio-k8s", "istio-pilot")
"""Charms that run istiod, under the names that Charmed Kubeflow and Canonical's Terraform modules give them."""
AMBIENT_LABEL = "istio.io/dataplane-mode"
AMBIENT = "ambient"
LABELLED_BY = "istio-aux.io/labelled-by"
"""Annotation with the record of `mesh.namespaces`."""

NEVER_INJECTED = "kube-system"
"""The namespace that the webhook's selectors exclude, whatever its labels."""

RENEWAL_REQUESTED = "istio-aux.io/renewal-requested"
"""Annotation of the webhook's Secret that requests a new certificate."""
HANDED_ON = "istio-aux.io/handed-on"
"""Annotation of that Secret: the digest of the last certificate of the relation that was written into it."""

CREATED_BY = "app.juju.is/created-by"
MODEL_NAME = "model.juju.is/name"
MODEL_UUID = "model.juju.is/id"
MANAGED_BY = "app.kubernetes.io/managed-by"
PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"
INSTANCE = "app.kubernetes.io/instance"
INSTALLATION = "istio-aux.io/installation"
NAMESPACE_NAME = "kubernetes.io/metadata.name"
POD_APPLICATION = "app.kubernetes.io/name"
"""Label of pods: the application's name by Juju, and that of the webhook's pods by the chart."""

MODEL_OPERATOR_LABELS = ("operator.juju.is/name", "juju-modeloperator", "model.juju.is/disable-webhook")
"""Labels of Juju's own pods, any of them: the first one of current controllers, the others of older ones."""

CONFIGURATIONS = ("istio-aux", "zz-istio-aux")
"""The webhook configurations: one before Istio's injector, and one after it."""
CLUSTER_ROLE = "istio-aux"
"""The webhook's ClusterRole."""
REQUIRE_SIDECAR = "istio-aux-require-sidecar"
"""The policy of the option `require-sidecar`, and its binding."""
ENDED_WEBHOOK = "ended.istio-aux.io"
"""The webhook for the kubelet's reports. Its timeout is fixed: each call delays the kubelet's other reports."""
WEBHOOKS_OF_NAMESPACES = (
    "startup-hold.namespace.istio-aux.io",
    "add-shim.namespace.istio-aux.io",
    "require-shim.namespace.istio-aux.io",
    "mesh.tenancy.istio-aux.io",
)
"""Webhooks for pods of namespaces that opt in by the label; the option `namespace-selector` has one more of each."""
WEBHOOKS_OF_THE_SHIM = ("add-shim.", "require-shim.", "mesh.")
"""Webhooks that add or require the shim, or a sidecar that only the shim ends: none of them without its image."""
TENANTS_WEBHOOKS = ("mesh.tenancy.", "pipelines-token.tenancy.")
OUT_OF_MESH_WEBHOOK = "out-of-mesh"
WEBHOOKS_BEFORE_A_SIDECAR = ("mesh.", "in-mesh.", "out-of-mesh.", "startup-hold.")
"""Webhooks that prepare pods for Istio's injector, or keep them from it: not called for pods in the ambient mesh."""
