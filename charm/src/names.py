"""Labels, annotations and names that the charm shares with the webhook, with Istio and with Juju.

A unit test compares the webhook's own with `contract/src/names.rs`.
"""

from typing import Literal

INJECTION_LABEL = "istio-aux.io/injection"
LEGACY_INJECTION_LABEL = "io.datastrophic/istio-aux"
ENABLED = "enabled"
DISABLED = "disabled"
MODE_ANNOTATION = "istio-aux.io/mode"
STATUS_ANNOTATION = "istio-aux.io/status"
SHIM_LABEL = "istio-aux.io/shim"

PIPELINES_TOKEN_LABEL = "istio-aux.io/pipelines-token"  # noqa: S105 - a label
MESH_LABEL = "istio-aux.io/mesh"
RUN_TO_COMPLETION = "run-to-completion"
ACCESS_PIPELINES_LABEL = "access-ml-pipeline"
TENANCY_MANAGER = "istio-aux-tenancy"
"""Value of `app.kubernetes.io/managed-by` on the tenancy controller's objects in tenants' namespaces."""

PROXY_CONTAINER = "istio-proxy"
PROXY_CONFIG_ANNOTATION = "proxy.istio.io/config"
HOLD_FIELD = "holdApplicationUntilProxyStarts"
ISTIO_INJECT = "sidecar.istio.io/inject"
ISTIO_INJECTION_LABEL = "istio-injection"
ISTIO_REVISION_LABEL = "istio.io/rev"
ISTIO_SYSTEM = "istio-system"
ISTIO_CHARMS = ("istio-pilot", "istio-k8s")
"""Charms that run istiod, under the names of their applications in Charmed Kubeflow."""
AMBIENT_LABEL = "istio.io/dataplane-mode"
AMBIENT, NOT_AMBIENT = "ambient", "none"
EXCLUDED_OUTBOUND_PORTS = "traffic.sidecar.istio.io/excludeOutboundPorts"
"""Annotation of Istio's: connections to these ports bypass the proxy."""

LABELLED_BY = "istio-aux.io/labelled-by"
"""Annotation with the record of `mesh.label_ownership`."""

NEVER_INJECTED = "kube-system"
"""The namespace that the webhook's selectors exclude, whatever its labels."""

CREATED_BY = "app.juju.is/created-by"
MODEL_NAME = "model.juju.is/name"
MODEL_UUID = "model.juju.is/id"
MANAGED_BY = "app.kubernetes.io/managed-by"
PART_OF = "app.kubernetes.io/part-of"
POD_APPLICATION = "app.kubernetes.io/name"
"""Juju's label on an application's pods, and the webhook's own on its pods elsewhere."""

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
TERMINAL_PHASES: tuple[PodPhase, ...] = ("Succeeded", "Failed")
"""Phases of pods whose containers have all terminated and will not be restarted."""

CHARM_INIT_CONTAINER = "charm-init"
"""Init container of a charm's pod, which calls the controller to introduce the unit."""
CONTROLLER_PORT = "17070"
"""Default port of a Juju controller's API."""
SERVING_LABEL = "istio-aux.io/serving"
"""Label of a unit's pod whose webhook answers. The Service selects it, because a pod is Ready earlier (juju#13568)."""

MODEL_OPERATOR = "modeloperator"
"""Juju's Deployment in each model's namespace."""
MODEL_OPERATOR_LABELS = (
    "operator.juju.is/name",
    "juju-modeloperator",
    "model.juju.is/disable-webhook",
)
"""Labels of Juju's own pods, any of them: the first one of current controllers, the others of older ones."""
