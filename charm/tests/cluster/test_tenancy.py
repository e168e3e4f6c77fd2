"""The option `tenancy`: the controller runs, serves namespaces by their label, and goes with option or application.

It takes another controller away from the cluster for the time: two would keep the same objects.
"""

from collections.abc import Callable, Iterator
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
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.rbac_authorization_v1 import ClusterRole
from ops import ActiveStatus

from tests.cluster.model import Model
from tests.cluster.removals import by_force, by_hooks, with_its_model
from tests.cluster.test_life import NO_TRUST
from tests.cluster.waiting import until
from tests.unit.juju import App

CONTROLLER = "istio-aux-tenancy"
OTHER_INSTALLATION = "istio-aux"
ROLE = "kubeflow-pipelines-edit"
POD_DEFAULTS = "poddefaults.kubeflow.org"
TENANTS_OBJECTS = "rolebinding,poddefault"

pytestmark = pytest.mark.usefixtures("kubeflow", "no_other_controller", "unit_pod")


@pytest.fixture
def kubeflow(untrusted: Model) -> Iterator[None]:
    """What the controller needs of Kubeflow, where the cluster does not have it."""
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


@pytest.fixture
def no_other_controller(untrusted: Model) -> Iterator[None]:
    """The controller of another installation is away meanwhile."""
    found = [
        each for each in untrusted.admin.list(Deployment, namespace=OTHER_INSTALLATION) if name(each) == CONTROLLER
    ]
    replicas = (found[0].spec and found[0].spec.replicas) if found else 0
    if replicas:
        scale(untrusted, 0)
        until("its end", lambda: not pods(untrusted, OTHER_INSTALLATION))
    yield
    if replicas:
        scale(untrusted, replicas)


def scale(model: Model, replicas: int) -> None:
    model.kubectl("scale", "deployment", CONTROLLER, "-n", OTHER_INSTALLATION, f"--replicas={replicas}")


def name(thing: Any) -> str:
    return str(thing.metadata.name)


def pods(model: Model, namespace: str) -> list[Pod]:
    return list(model.admin.list(Pod, namespace=namespace, labels={"app.kubernetes.io/name": CONTROLLER}))


def tenants_objects(model: Model, namespace: str) -> set[str]:
    """What the controller keeps in a namespace."""
    label = f"app.kubernetes.io/managed-by={CONTROLLER}"
    return set(model.kubectl("get", TENANTS_OBJECTS, "-n", namespace, "-l", label, "-o", "name").split())


KEPT = {
    "rolebinding.rbac.authorization.k8s.io/istio-aux-pipelines",
    "poddefault.kubeflow.org/access-ml-pipeline",
}


def is_available(model: Model) -> bool:
    status = model.admin.get(Deployment, CONTROLLER, namespace=model.name).status
    return bool(status and status.availableReplicas == 2)


def test_labelled_namespace_is_served_until_the_option_is_off(model: Model) -> None:
    # As Juju's pods are admitted before, and the controller's after it.
    model.admin.patch(
        Namespace, model.name, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    )
    tenant, other = model.namespace(istio_aux_io__tenancy="enabled"), model.namespace()
    app = model.app()
    app.deploy(1)
    assert len(model.written()) == 3
    assert tenants_objects(model, tenant) == set()

    app.config = {"tenancy": True}
    app.update(0)
    assert app.status() == ActiveStatus()
    assert len(model.written()) == 12
    until("both replicas of the controller", lambda: is_available(model))
    until("the tenant's objects", lambda: tenants_objects(model, tenant) == KEPT)
    bound = ("get", "rolebinding", "istio-aux-pipelines", "-n", tenant, "-o")
    assert model.kubectl(*bound, "jsonpath={.roleRef.name} {.subjects[*].name}") == f"{ROLE} default"
    assert tenants_objects(model, other) == set()
    deployment = model.admin.get(Deployment, CONTROLLER, namespace=model.name).metadata
    app.update(0)
    again = model.admin.get(Deployment, CONTROLLER, namespace=model.name).metadata
    assert deployment
    assert again
    assert deployment.generation == again.generation

    app.config = {}
    app.update(0)
    assert tenants_objects(model, tenant) == set()
    assert len(model.written()) == 3
    assert app.status() == ActiveStatus(), "the application has its own rights still"
    until("the end of the controller's pods", lambda: not pods(model, model.name))
    assert tenants_objects(model, tenant) == set()


@pytest.mark.parametrize(("go", "left"), [(by_hooks, set[str]()), (by_force, KEPT), (with_its_model, KEPT)])
def test_controller_is_gone_with_the_application(
    model: Model, go: Callable[[Model, App], None], left: set[str]
) -> None:
    tenant = model.namespace(istio_aux_io__tenancy="enabled")
    app = model.app()
    app.config = {"tenancy": True}
    app.deploy(1)
    until("the tenant's objects", lambda: tenants_objects(model, tenant) == KEPT)
    go(model, app)
    until_swept(model)
    assert tenants_objects(model, tenant) == left
    # As README says it.
    model.kubectl("delete", TENANTS_OBJECTS, "-A", "-l", f"app.kubernetes.io/managed-by={CONTROLLER}")
    assert tenants_objects(model, tenant) == set()


def until_swept(model: Model) -> None:
    """Wait until Kubernetes has deleted what was owned by something that Juju deletes. Fails naming what is left."""
    left: set[str] = set()

    def is_swept() -> bool:
        left.clear()
        left.update(set(model.labelled()) - model.juju_own())
        return not left

    try:
        until("no object with the application's labels", is_swept)
    except AssertionError as error:
        raise AssertionError(f"{error}: left are {sorted(left)}") from error


def test_charm_may_give_the_controller_only_rights_that_it_has(untrusted: Model) -> None:
    role = f"{untrusted.name}-writes-roles"
    kinds = "mutatingwebhookconfigurations,clusterroles.rbac.authorization.k8s.io,clusterrolebindings,namespaces"
    verbs = ("get", "list", "create", "patch", "delete")
    untrusted.kubectl("create", "clusterrole", role, f"--resource={kinds}", *(f"--verb={verb}" for verb in verbs))
    account = f"--serviceaccount={untrusted.name}:istio-aux"
    untrusted.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", account)
    try:
        until("its rights", lambda: untrusted.may("create", "clusterroles"))
        app = untrusted.app()
        app.config = {"tenancy": True}
        app.deploy(1)
        assert app.status() == NO_TRUST
        assert not [each for each in untrusted.written() if each.startswith(("clusterrole", "deployment"))]
    finally:
        untrusted.kubectl("delete", "clusterrole,clusterrolebinding", role)
