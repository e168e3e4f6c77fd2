"""Reads the cluster objects. Holds statuses that more than one test expects."""

from typing import Any

from ops import BlockedStatus, MaintenanceStatus, WaitingStatus

from cluster.client import KINDS
from tests.unit.api import Api

CONFIGURATION = ("MutatingWebhookConfiguration", "istio-aux")
SHIM_CONFIGURATION = ("MutatingWebhookConfiguration", "zz-istio-aux")
WEBHOOK = ("Deployment", "istio-aux-webhook", "kubeflow")
CONTROLLER = ("Deployment", "istio-aux-webhook-tenancy", "kubeflow")
OURS = tuple(kind.__name__ for kind in KINDS)
NO_TRUST = BlockedStatus("no rights in the cluster; run: juju trust istio-aux --scope=cluster")
API_UNAVAILABLE = WaitingStatus("waiting for the Kubernetes API, which does not answer; see juju debug-log")
REMOVED = MaintenanceStatus("removed from the cluster: no unit is planned")
NOT_READY = WaitingStatus(
    "waiting for the Deployment istio-aux-webhook, which is not ready; see its events and its log"
)

_NAME = ["istio-aux-webhook"]
_POLICIES = ["istio-aux-ca-bundle-only", "istio-aux-ended"]
INSTALLED = {
    "MutatingWebhookConfiguration": ["istio-aux", "zz-istio-aux"],
    "ValidatingAdmissionPolicyBinding": _POLICIES,
    "ValidatingAdmissionPolicy": _POLICIES,
    "ClusterRoleBinding": ["istio-aux"],
    "RoleBinding": _NAME,
    "Deployment": _NAME,
    "ClusterRole": ["istio-aux"],
    "Role": _NAME,
    "Secret": ["istio-aux-webhook-certificate"],
    "ServiceAccount": _NAME,
    "PodDisruptionBudget": _NAME,
    "Service": _NAME,
}
"""The names of the objects, by kind."""
OF_TENANCY = {
    kind: ["istio-aux-tenancy" if kind.startswith("Cluster") else "istio-aux-webhook-tenancy"]
    for kind in (
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
    )
}
"""Those that the option `tenancy` adds."""
OF_TENANCY["ClusterRole"].insert(0, "istio-aux-pipelines")
for _policy in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
    OF_TENANCY[_policy] = ["istio-aux-tenancy"]
WITH_TENANCY = {kind: INSTALLED.get(kind, []) + OF_TENANCY.get(kind, []) for kind in {**INSTALLED, **OF_TENANCY}}


def objects(api: Api) -> dict[str, list[str]]:
    """Lists the objects of the charm's kinds, except Juju's model operator."""
    found = {kind: [name for name in api.names(kind) if name != "modeloperator"] for kind in OURS}
    return {kind: names for kind, names in found.items() if names}


def arguments(api: Api) -> list[str]:
    """Returns the webhook's arguments."""
    return api.get(*WEBHOOK)["spec"]["template"]["spec"]["containers"][0]["args"]


def webhooks(api: Api) -> dict[str, dict[str, Any]]:
    """Returns the webhooks of both configurations by name."""
    both = [*api.get(*CONFIGURATION)["webhooks"], *api.get(*SHIM_CONFIGURATION)["webhooks"]]
    return {webhook["name"]: webhook for webhook in both}
