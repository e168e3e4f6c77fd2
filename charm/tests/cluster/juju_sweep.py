"""Deletes what Juju deletes without the charm's hooks, as read in its source (juju/juju, 3.6.11 and later).

An application, also by `--force`: `Delete` in internal/provider/kubernetes/application/application.go. A model:
internal/provider/kubernetes/modelteardown.go, and its namespace. Neither lists policies of the admission API.
"""

from tests.cluster.model import Model

CLUSTER_KINDS = (
    "clusterroles",
    "clusterrolebindings",
    "customresourcedefinitions",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
)
APPLICATION_KINDS = (
    "statefulsets",
    "deployments",
    "daemonsets",
    "services",
    "configmaps",
    "roles",
    "rolebindings",
    "serviceaccounts",
    "ingresses",
    *CLUSTER_KINDS,
)
MODEL_KINDS = (*CLUSTER_KINDS, "storageclasses")


def remove_application(model: Model) -> None:
    """Deletes what `juju remove-application --force` does."""
    labels = f"app.juju.is/created-by=istio-aux,app.kubernetes.io/managed-by=juju,{_model_labels(model)}"
    model.kubectl("delete", ",".join(APPLICATION_KINDS), "-n", model.name, "-l", labels)


def destroy_model(model: Model) -> None:
    """Deletes what `juju destroy-model --force` does."""
    model.kubectl("delete", ",".join(MODEL_KINDS), "-l", _model_labels(model))
    model.kubectl("delete", "namespace", model.name, "--wait=false")


def _model_labels(model: Model) -> str:
    return f"model.juju.is/name={model.name},model.juju.is/id={model.juju.uuid}"
