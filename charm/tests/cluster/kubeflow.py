"""What the controller for tenants needs of Kubeflow."""

import pathlib
from collections.abc import Iterator

import pytest
import yaml
from lightkube.resources.core_v1 import Pod

from tests.cluster.model import Model
from tests.cluster.waiting import until

CONTROLLER = "istio-aux-webhook-tenancy"
MANAGER = "istio-aux-tenancy"
"""Value of the label `app.kubernetes.io/managed-by` on what the controller keeps."""
ROLE = "istio-aux-pipelines"
NEEDED = {
    (each["kind"], each["metadata"]["name"]): each
    for each in yaml.safe_load_all(pathlib.Path(__file__).with_suffix(".yaml").read_text())
}


@pytest.fixture
def kubeflow(untrusted: Model) -> Iterator[None]:
    """Creates what the controller needs of Kubeflow, if the cluster does not have it."""
    made = [each for each in NEEDED if not untrusted.kubectl("get", *each, "--ignore-not-found")]
    for each in made:
        untrusted.apply([NEEDED[each]])
    until("the kind PodDefault", lambda: serves_pod_defaults(untrusted))
    yield
    for each in made:
        untrusted.kubectl("delete", *each)
    if "CustomResourceDefinition" in dict(made):
        until("the end of the kind PodDefault", lambda: not serves_pod_defaults(untrusted))


def serves_pod_defaults(model: Model) -> bool:
    return "poddefaults.kubeflow.org" in model.kubectl("api-resources", "-o", "name").split()


def pods(model: Model, namespace: str) -> list[Pod]:
    return list(model.admin.list(Pod, namespace=namespace, labels={"app.kubernetes.io/name": CONTROLLER}))
