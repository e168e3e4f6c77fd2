"""What tests look at: the cluster objects, whom they trust, and the statuses that more than one test expects."""

import base64

from ops import BlockedStatus, MaintenanceStatus, WaitingStatus

from certs import serving_cert
from tests.unit.api import Api
from tests.unit.juju import App

CONFIGURATION = ("MutatingWebhookConfiguration", "istio-aux-kubeflow")
OURS = (
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "PodDisruptionBudget",
    "Service",
)
NO_TRUST = BlockedStatus("no rights in the cluster; run: juju trust istio-aux --scope=cluster")
API_UNAVAILABLE = WaitingStatus("waiting for the Kubernetes API, which does not answer; see juju debug-log")
REMOVED = MaintenanceStatus("removed from the cluster: no unit is planned")


def trusted(api: Api) -> set[str]:
    """The CAs of every entry's caBundle."""
    bundles = {entry["clientConfig"]["caBundle"] for entry in api.get(*CONFIGURATION)["webhooks"]}
    assert len(bundles) == 1
    return set(serving_cert.split(base64.b64decode(bundles.pop()).decode()))


def objects(api: Api) -> dict[str, list[str]]:
    return {kind: api.names(kind) for kind in OURS if api.names(kind)}


INSTALLED = {
    "MutatingWebhookConfiguration": ["istio-aux-kubeflow"],
    "PodDisruptionBudget": ["istio-aux-admission"],
    "Service": ["istio-aux-admission"],
}


def command(app: App, unit: int = 0) -> str:
    return app.container(unit).plan.services["webhook"].command
