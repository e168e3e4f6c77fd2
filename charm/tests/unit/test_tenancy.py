"""The option `tenancy`: the controller for Kubeflow's tenants, and what it keeps."""

import pathlib
import re

import pytest
from ops import ActiveStatus, WaitingStatus

from cluster import resources
from tests.unit.api import Api, Json, api_error
from tests.unit.juju import IMAGE, SHIM, App, image_resource
from tests.unit.seen import (
    API_UNAVAILABLE,
    CONFIGURATION,
    CONTROLLER,
    INSTALLED,
    SHIM_CONFIGURATION,
    WITH_TENANCY,
    objects,
)

LEFT = ["istio-aux-pipelines", "theirs"]
"""The RoleBindings of others in the namespaces."""
REPOSITORY = pathlib.Path(__file__).parents[3]


@pytest.fixture
def with_tenancy(app: App) -> App:
    app.deploy(config={"tenancy": True})
    return app


def controller(api: Api) -> Json:
    """The pods' specification of the controller."""
    return api.get(*CONTROLLER)["spec"]["template"]["spec"]


def put_tenants_objects(api: Api) -> None:
    """Creates the controller's objects in a tenant's namespace, and others of the same kinds."""
    ours = {"labels": {"app.kubernetes.io/managed-by": "istio-aux-tenancy", "istio-aux.io/installation": "kubeflow"}}
    another = {"labels": {**ours["labels"], "istio-aux.io/installation": "other"}}
    role = {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "any"}}
    api.put("RoleBinding", "istio-aux-pipelines", "team", metadata=ours, **role)
    api.put("PodDefault", "access-ml-pipeline", "team", metadata=ours)
    api.put("Lease", "istio-aux-webhook-tenancy", "kubeflow", metadata=ours)
    api.put("RoleBinding", "theirs", "team", **role)
    api.put("RoleBinding", "istio-aux-pipelines", "of-another-installation", metadata=another, **role)
    api.put("PodDefault", "theirs", "team")


def test_option_installs_controller_from_the_webhooks_image(with_tenancy: App, api: Api) -> None:
    assert with_tenancy.status() == ActiveStatus()
    assert objects(api) == WITH_TENANCY
    assert controller(api)["containers"][0]["image"] == IMAGE


def test_webhook_is_called_for_tenants_only_with_the_option(with_tenancy: App, api: Api) -> None:
    def paths() -> set[str]:
        configurations = [api.get(kind, name) for kind, name in (CONFIGURATION, SHIM_CONFIGURATION)]
        entries = [entry for each in configurations for entry in each["webhooks"]]
        return {entry["clientConfig"]["service"]["path"] for entry in entries}

    tenants = {"/mutate/mesh", "/mutate/pipelines-token"}
    assert paths() == {"/mutate", "/mutate/ended", "/mutate/out-of-mesh", "/mutate/in-mesh", *tenants}
    with_tenancy.config = SHIM
    with_tenancy.update(0)
    assert paths() == {"/mutate", "/mutate/ended", "/mutate/out-of-mesh", "/mutate/in-mesh"}


def test_controller_follows_image_and_log_level(with_tenancy: App, api: Api) -> None:
    with_tenancy.resources = frozenset({image_resource(registrypath="registry.example/charm/webhook:2")})
    with_tenancy.config["log-level"] = "debug"
    with_tenancy.run(0, "upgrade_charm")
    assert controller(api)["containers"][0]["image"] == "registry.example/charm/webhook:2"
    assert "--log-level=debug" in controller(api)["containers"][0]["args"]


def test_option_off_deletes_rights_then_objects_then_controller(with_tenancy: App, api: Api) -> None:
    put_tenants_objects(api)
    api.writes.clear()
    with_tenancy.config = SHIM
    with_tenancy.update(0)
    assert objects(api) == {**INSTALLED, "RoleBinding": [LEFT[0], "istio-aux-webhook", LEFT[1]]}
    assert api.names("PodDefault") == ["theirs"]
    deleted = [name for verb, name in api.writes if verb == "delete"]
    order = (
        "ClusterRoleBinding/istio-aux-tenancy",
        "RoleBinding/istio-aux-pipelines",
        f"Deployment/{CONTROLLER[1]}",
    )
    assert [deleted.index(name) for name in order] == sorted(deleted.index(name) for name in order)
    assert with_tenancy.status() == ActiveStatus()


def test_tenants_objects_are_deleted_at_next_event_after_failure(with_tenancy: App, api: Api) -> None:
    put_tenants_objects(api)
    api.rejected["PodDefault"] = api_error(503)
    with_tenancy.config = SHIM
    with_tenancy.update(0)
    assert with_tenancy.status() == API_UNAVAILABLE
    api.rejected.clear()
    with_tenancy.update(0)
    assert api.names("PodDefault") == ["theirs"]
    assert objects(api) == {**INSTALLED, "RoleBinding": [LEFT[0], "istio-aux-webhook", LEFT[1]]}


def test_removal_deletes_everything(with_tenancy: App, api: Api) -> None:
    put_tenants_objects(api)
    with_tenancy.remove_all()
    assert objects(api) == {"RoleBinding": LEFT}
    assert api.names("PodDefault") == ["theirs"]


def test_tenants_objects_stay_without_the_option(app: App, api: Api) -> None:
    put_tenants_objects(api)
    app.deploy()
    app.remove_all()
    assert api.names("RoleBinding") == ["istio-aux-pipelines", *LEFT]


def test_jujus_account_and_rights_are_never_deleted(app: App, api: Api) -> None:
    """Juju makes them, and may give them the labels by which it finds what is the application's."""
    labels = {
        "app.juju.is/created-by": "istio-aux",
        "model.juju.is/name": "kubeflow",
        "model.juju.is/id": app.model.uuid,
        "app.kubernetes.io/managed-by": "juju",
    }
    role = {"apiGroup": "", "kind": "ClusterRole", "name": "kubeflow-istio-aux"}
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        api.put(kind, "kubeflow-istio-aux", metadata={"labels": labels}, roleRef=role)
    for kind in ("ServiceAccount", "Role", "RoleBinding", "Service"):
        api.put(kind, "istio-aux", "kubeflow", metadata={"labels": labels}, roleRef=role)
    jujus = set(api.objects)
    app.deploy(config={"tenancy": True})
    app.config = SHIM
    app.update(0)
    app.remove_all()
    assert jujus <= set(api.objects)


def test_objects_that_juju_does_not_sweep_have_owners(with_tenancy: App, api: Api) -> None:
    owners = {
        (kind, name): [owner["uid"] for owner in value["metadata"].get("ownerReferences", [])]
        for (kind, _, name), value in api.objects.items()
        if kind in ("PodDisruptionBudget", "NetworkPolicy", "Secret")
    }
    policies = [value for (kind, _, _), value in api.objects.items() if kind.startswith("ValidatingAdmissionPolicy")]
    assert len(policies) == 6
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "name": "istio-aux",
        "uid": "uid of ClusterRole/istio-aux",
    }
    for policy in policies:
        assert policy["metadata"]["ownerReferences"] == [role]
    of_webhook, of_controller = (["uid of Deployment/istio-aux-webhook" + end] for end in ("", "-tenancy"))
    assert owners == {
        ("Secret", "istio-aux-webhook-certificate"): of_webhook,
        ("PodDisruptionBudget", "istio-aux-webhook"): of_webhook,
        ("PodDisruptionBudget", "istio-aux-webhook-tenancy"): of_controller,
        ("NetworkPolicy", "istio-aux-webhook-tenancy"): of_controller,
    }


def test_controller_that_does_not_start_is_reported(with_tenancy: App, api: Api) -> None:
    api.get(*CONTROLLER)["status"] = {"conditions": [{"type": "Progressing", "status": "False"}]}
    api.starts = False
    with_tenancy.update(0)
    message = f"waiting for the Deployment {CONTROLLER[1]}, which is not ready; see its events and its log"
    assert with_tenancy.status() == WaitingStatus(message)


def test_tenants_kinds_are_the_controllers() -> None:
    source = (REPOSITORY / "contract/src/kind.rs").read_text()
    constants = [re.search(rf"{name}: Kind(.*?);", source, re.S) for name in ("ROLE_BINDINGS", "POD_DEFAULTS")]
    kinds = [re.findall(r'"([\w.]+)"', constant[1])[-2:] for constant in constants if constant]
    kinds.append(["Lease", "leases"])
    assert [[kind.__name__, kind._api_info.plural] for kind in resources._TENANT_KINDS] == kinds
