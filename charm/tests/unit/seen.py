"""Reads the cluster objects and the CAs in them. Holds statuses that more than one test expects."""

import base64

from ops import BlockedStatus, MaintenanceStatus, WaitingStatus

from certs import serving_cert
from cluster.client import KINDS
from tests.unit.api import Api
from tests.unit.juju import App

CONFIGURATION = ("MutatingWebhookConfiguration", "istio-aux-kubeflow")
IMAGE = "registry.example/charm/webhook@sha256:" + "1" * 64
"""The webhook's image in the units' pods."""
OURS = tuple(kind.__name__ for kind in KINDS)
NO_TRUST = BlockedStatus("no rights in the cluster; run: juju trust istio-aux --scope=cluster")
API_UNAVAILABLE = WaitingStatus("waiting for the Kubernetes API, which does not answer; see juju debug-log")
REMOVED = MaintenanceStatus("removed from the cluster: no unit is planned")


def trusted(api: Api) -> set[str]:
    """Returns the CAs in the entries' caBundle."""
    bundles = {entry["clientConfig"]["caBundle"] for entry in api.get(*CONFIGURATION)["webhooks"]}
    assert len(bundles) == 1
    return set(serving_cert.split(base64.b64decode(bundles.pop()).decode()))


def objects(api: Api) -> dict[str, list[str]]:
    """Lists the objects of the charm's kinds, except Juju's model operator."""
    found = {kind: [name for name in api.names(kind) if name != "modeloperator"] for kind in OURS}
    return {kind: names for kind, names in found.items() if names}


OF_TENANCY = {
    "ServiceAccount": ["istio-aux-tenancy"],
    "ClusterRole": ["istio-aux-kubeflow-tenancy"],
    "ClusterRoleBinding": ["istio-aux-kubeflow-tenancy"],
    "Role": ["istio-aux-tenancy"],
    "RoleBinding": ["istio-aux-tenancy"],
    "Deployment": ["istio-aux-tenancy"],
    "Lease": ["istio-aux-tenancy"],
    "NetworkPolicy": ["istio-aux-tenancy"],
}
"""Objects that the option `tenancy` adds, besides a PodDisruptionBudget."""
INSTALLED = {
    "MutatingWebhookConfiguration": ["istio-aux-kubeflow", "zz-istio-aux-kubeflow"],
    "PodDisruptionBudget": ["istio-aux-admission"],
    "Service": ["istio-aux-admission"],
}


def command(app: App, unit: int = 0) -> str:
    return app.container(unit).plan.services["webhook"].command
