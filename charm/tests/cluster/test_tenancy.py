"""The option `tenancy`: the controller runs, serves labelled namespaces, and is deleted with option or application."""

from collections.abc import Callable

import pytest
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Namespace
from ops import ActiveStatus

from tests.cluster.kubeflow import CONTROLLER, MANAGER, ROLE, pods
from tests.cluster.model import Model
from tests.cluster.removals import by_force, by_hooks, with_its_model
from tests.cluster.waiting import until
from tests.unit.juju import App

TENANTS_OBJECTS = "rolebinding,poddefault"

pytestmark = pytest.mark.usefixtures("kubeflow")


def tenants_objects(model: Model, namespace: str) -> set[str]:
    """Lists the controller's objects in a namespace."""
    label = f"app.kubernetes.io/managed-by={MANAGER}"
    return set(model.kubectl("get", TENANTS_OBJECTS, "-n", namespace, "-l", label, "-o", "name").split())


KEPT = {
    "rolebinding.rbac.authorization.k8s.io/istio-aux-pipelines",
    "poddefault.kubeflow.org/access-ml-pipeline",
}


def a_tenant(model: Model) -> str:
    """Creates a namespace that asks for both objects."""
    tenant = model.namespace(istio_aux_io__tenancy="enabled")
    model.kubectl("annotate", "namespace", tenant, "istio-aux.io/pipelines-accounts=trainer")
    return tenant


def is_available(model: Model) -> bool:
    status = model.admin.get(Deployment, CONTROLLER, namespace=model.name).status
    return bool(status and status.availableReplicas == 2)


def test_tenant_is_served_until_the_option_is_off(model: Model) -> None:
    # The controller's pods must meet it.
    model.admin.patch(
        Namespace, model.name, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    )
    tenant, other = a_tenant(model), model.namespace()
    app = model.deployed()
    without = model.written()
    assert tenants_objects(model, tenant) == set()

    app.config["tenancy"] = True
    app.update(0)
    assert app.status() == ActiveStatus()
    assert len(model.written()) == len(without) + 11
    until("both replicas of the controller", lambda: is_available(model))
    until("the tenant's objects", lambda: tenants_objects(model, tenant) == KEPT)
    bound = ("get", "rolebinding", "istio-aux-pipelines", "-n", tenant, "-o")
    assert model.kubectl(*bound, "jsonpath={.roleRef.name} {.subjects[*].name}") == f"{ROLE} trainer"
    assert tenants_objects(model, other) == set()
    deployment = model.admin.get(Deployment, CONTROLLER, namespace=model.name).metadata
    app.update(0)
    again = model.admin.get(Deployment, CONTROLLER, namespace=model.name).metadata
    assert deployment
    assert again
    assert deployment.generation == again.generation

    app.config["tenancy"] = False
    app.update(0)
    assert tenants_objects(model, tenant) == set()
    assert model.written() == without
    assert app.status() == ActiveStatus(), "the application has its own rights still"
    until("the end of the controller's pods", lambda: not pods(model, model.name))
    assert tenants_objects(model, tenant) == set()


@pytest.mark.parametrize(("go", "left"), [(by_hooks, set[str]()), (by_force, KEPT), (with_its_model, KEPT)])
def test_controller_is_gone_with_the_application(
    model: Model, go: Callable[[Model, App], None], left: set[str]
) -> None:
    tenant = a_tenant(model)
    app = model.deployed({"tenancy": True})
    until("the tenant's objects", lambda: tenants_objects(model, tenant) == KEPT)
    go(model, app)
    model.until_swept()
    assert tenants_objects(model, tenant) == left
    # As README says it.
    model.kubectl("delete", TENANTS_OBJECTS, "-A", "-l", f"app.kubernetes.io/managed-by={MANAGER}")
    assert tenants_objects(model, tenant) == set()
