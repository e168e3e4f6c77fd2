"""What the controller for tenants needs of Kubeflow."""

from collections.abc import Iterator
from typing import Any

import pytest
from lightkube.models.apiextensions_v1 import (
    CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion,
    CustomResourceValidation,
    JSONSchemaProps,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.core_v1 import Pod
from lightkube.resources.rbac_authorization_v1 import ClusterRole

from tests.cluster.model import Model
from tests.cluster.waiting import until

CONTROLLER = "istio-aux-webhook-tenancy"
MANAGER = "istio-aux-tenancy"
"""Value of the label `app.kubernetes.io/managed-by` on what the controller keeps."""
ROLE = "kubeflow-pipelines-edit"
POD_DEFAULTS = "poddefaults.kubeflow.org"


@pytest.fixture
def kubeflow(untrusted: Model) -> Iterator[None]:
    """Creates what the controller needs of Kubeflow, if the cluster does not have it."""
    made: list[tuple[Any, str]] = []
    if ROLE not in {str(each.metadata and each.metadata.name) for each in untrusted.admin.list(ClusterRole)}:
        untrusted.admin.create(ClusterRole(metadata=ObjectMeta(name=ROLE), rules=[]))
        made.append((ClusterRole, ROLE))
    kinds = {str(each.metadata and each.metadata.name) for each in untrusted.admin.list(CustomResourceDefinition)}
    if POD_DEFAULTS not in kinds:
        untrusted.admin.create(pod_defaults())
        made.append((CustomResourceDefinition, POD_DEFAULTS))
    until("the kind PodDefault", lambda: serves_pod_defaults(untrusted))
    yield
    for kind, name in made:
        untrusted.admin.delete(kind, name)
    if (CustomResourceDefinition, POD_DEFAULTS) in made:
        until("the end of the kind PodDefault", lambda: not serves_pod_defaults(untrusted))


def serves_pod_defaults(model: Model) -> bool:
    return POD_DEFAULTS in model.kubectl("api-resources", "-o", "name").split()


def pod_defaults() -> CustomResourceDefinition:
    schema = JSONSchemaProps(type="object", x_kubernetes_preserve_unknown_fields=True)
    version = CustomResourceDefinitionVersion(
        name="v1alpha1", served=True, storage=True, schema=CustomResourceValidation(openAPIV3Schema=schema)
    )
    names = CustomResourceDefinitionNames(kind="PodDefault", plural="poddefaults", singular="poddefault")
    spec = CustomResourceDefinitionSpec(group="kubeflow.org", names=names, scope="Namespaced", versions=[version])
    return CustomResourceDefinition(metadata=ObjectMeta(name=POD_DEFAULTS), spec=spec)


def pods(model: Model, namespace: str) -> list[Pod]:
    return list(model.admin.list(Pod, namespace=namespace, labels={"app.kubernetes.io/name": CONTROLLER}))
