"""The option `tenancy`: the controller for Kubeflow's tenants, and what it keeps."""

import datetime
import pathlib
import re
from typing import Any, cast

import pytest
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod
from ops import ActiveStatus, BlockedStatus, WaitingStatus

from cluster import tenancy
from cluster.tenancy import Image
from tests.unit.api import Api, Json, api_error
from tests.unit.juju import START, App, Clock
from tests.unit.seen import API_UNAVAILABLE, CONFIGURATION, IMAGE, INSTALLED, NO_TRUST, OF_TENANCY, objects

WITH_TENANCY = {
    **INSTALLED,
    **OF_TENANCY,
    "PodDisruptionBudget": ["istio-aux-admission", "istio-aux-tenancy"],
}
CONTROLLER = ("Deployment", "istio-aux-tenancy", "kubeflow")
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
    ours = {"labels": {"app.kubernetes.io/managed-by": "istio-aux-tenancy"}}
    role = {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "any"}}
    api.put("RoleBinding", "istio-aux-pipelines", "team", metadata=ours, **role)
    api.put("PodDefault", "access-ml-pipeline", "team", metadata=ours)
    api.put("RoleBinding", "theirs", "team", **role)
    api.put("PodDefault", "theirs", "team")


def test_option_installs_controller_from_units_image(with_tenancy: App, api: Api) -> None:
    assert with_tenancy.status() == ActiveStatus()
    assert objects(api) == WITH_TENANCY
    assert controller(api)["containers"][0]["image"] == IMAGE
    assert controller(api)["imagePullSecrets"] == [{"name": "istio-aux-webhook-secret"}]


def test_webhook_is_called_for_tenants_only_with_the_option(with_tenancy: App, api: Api) -> None:
    def paths() -> set[str]:
        return {entry["clientConfig"]["service"]["path"] for entry in api.get(*CONFIGURATION)["webhooks"]}

    assert paths() == {"/mutate", "/mutate/mesh", "/mutate/pipelines-token", "/mutate/ended"}
    with_tenancy.config = {}
    with_tenancy.update(0)
    assert paths() == {"/mutate", "/mutate/ended"}


def test_controller_follows_image_and_log_level(with_tenancy: App, api: Api) -> None:
    pod = api.get("Pod", "istio-aux-0", "kubeflow")
    pod["spec"]["containers"][1]["image"] = "registry.example/charm/webhook:2"
    with_tenancy.config["log-level"] = "debug"
    with_tenancy.churn(0)
    with_tenancy.run(0, with_tenancy.contexts[0].on.upgrade_charm())
    assert controller(api)["containers"][0]["image"] == "registry.example/charm/webhook:2"
    assert "--log-level=debug" in controller(api)["containers"][0]["args"]


def test_new_leader_changes_nothing(app: App, api: Api) -> None:
    app.deploy(2, config={"tenancy": True})
    writes = len(api.writes)
    app.leader = 1
    app.run(1, app.contexts[1].on.leader_elected())
    assert len(api.writes) == writes


def test_option_off_deletes_rights_then_objects_then_controller(with_tenancy: App, api: Api) -> None:
    put_tenants_objects(api)
    api.writes.clear()
    with_tenancy.config = {}
    with_tenancy.update(0)
    assert objects(api) == {**INSTALLED, "RoleBinding": ["theirs"]}
    assert api.names("PodDefault") == ["theirs"]
    deleted = [name for verb, name in api.writes if verb == "delete"]
    order = (
        "ClusterRoleBinding/istio-aux-kubeflow-tenancy",
        "RoleBinding/istio-aux-pipelines",
        f"Deployment/{CONTROLLER[1]}",
    )
    assert [deleted.index(name) for name in order] == sorted(deleted.index(name) for name in order)
    assert with_tenancy.status() == ActiveStatus()


def test_tenants_objects_are_deleted_at_next_event_after_failure(with_tenancy: App, api: Api) -> None:
    put_tenants_objects(api)
    api.rejected["PodDefault"] = api_error(503)
    with_tenancy.config = {}
    with_tenancy.update(0)
    assert with_tenancy.status() == API_UNAVAILABLE
    api.rejected.clear()
    with_tenancy.update(0)
    assert api.names("PodDefault") == ["theirs"]
    assert objects(api) == {**INSTALLED, "RoleBinding": ["theirs"]}


def test_removal_deletes_everything(with_tenancy: App, api: Api) -> None:
    put_tenants_objects(api)
    with_tenancy.remove_all()
    assert objects(api) == {"RoleBinding": ["theirs"]}
    assert api.names("PodDefault") == ["theirs"]


def test_tenants_objects_stay_without_the_option(app: App, api: Api) -> None:
    put_tenants_objects(api)
    app.deploy()
    app.remove_all()
    assert api.names("RoleBinding") == ["istio-aux-pipelines", "theirs"]


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
    app.config = {}
    app.update(0)
    app.remove_all()
    assert jujus <= set(api.objects)


def test_objects_that_juju_does_not_sweep_have_owners(with_tenancy: App, api: Api) -> None:
    owners = {
        (kind, name): [owner["uid"] for owner in value["metadata"].get("ownerReferences", [])]
        for (kind, _, name), value in api.objects.items()
        if kind in ("PodDisruptionBudget", "Lease", "NetworkPolicy")
    }
    of_controller = ["uid of Deployment/istio-aux-tenancy"]
    assert owners == {
        ("PodDisruptionBudget", "istio-aux-admission"): ["uid of Service/istio-aux-admission"],
        ("PodDisruptionBudget", "istio-aux-tenancy"): of_controller,
        ("Lease", "istio-aux-tenancy"): of_controller,
        ("NetworkPolicy", "istio-aux-tenancy"): of_controller,
    }


def test_controller_that_does_not_start_is_reported_after_a_minute(with_tenancy: App, api: Api, clock: Clock) -> None:
    api.get(*CONTROLLER)["status"] = {"conditions": [condition("Available", "False", at=clock.now)]}
    clock.passes(seconds=59)
    with_tenancy.update(0)
    assert with_tenancy.status() == ActiveStatus()
    clock.passes(seconds=1)
    with_tenancy.update(0)
    message = "waiting for the Deployment istio-aux-tenancy, which is not ready; see its events and its log"
    assert with_tenancy.status() == WaitingStatus(message)
    api.get(*CONTROLLER)["status"] = {"conditions": [condition("Available", "True", at=clock.now)]}
    with_tenancy.update(0)
    assert with_tenancy.status() == ActiveStatus()


def condition(kind: str, status: str, at: datetime.datetime = START) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": at.isoformat().replace("+00:00", "Z")}


@pytest.mark.parametrize(
    ("conditions", "overdue"),
    [
        (None, False),
        ([], False),
        ([condition("Available", "True"), condition("Progressing", "True")], False),
        ([condition("Available", "False"), condition("Progressing", "True")], True),
        # A new image that cannot be pulled: the replicas before it run on.
        ([condition("Available", "True"), condition("Progressing", "False")], True),
        ([{"type": "Available", "status": "False"}], True),
    ],
)
def test_controller_is_overdue(conditions: list[Any] | None, overdue: bool) -> None:
    there: dict[str, Any] = {
        "metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"selector": {}, "template": {}},
    }
    if conditions is not None:
        there["status"] = {"conditions": conditions}
    assert (
        tenancy.is_overdue(cast("Deployment", Deployment.from_dict(there)), START + datetime.timedelta(hours=1))
        is overdue
    )


def test_controller_that_is_not_there_is_not_overdue() -> None:
    assert not tenancy.is_overdue(None, START)


@pytest.mark.parametrize(
    ("spec", "image"),
    [
        ({"containers": [{"name": "webhook", "image": "a"}]}, Image("a")),
        ({"containers": [{"name": "charm", "image": "b"}]}, None),
        ({"containers": [{"name": "webhook"}]}, None),
        (
            {"containers": [{"name": "webhook", "image": "a"}], "imagePullSecrets": [{"name": "s"}, {}]},
            Image("a", ("s",)),
        ),
    ],
)
def test_image_is_that_of_the_webhooks_container(spec: dict[str, Any], image: Image | None) -> None:
    assert tenancy.image_of(cast("Pod", Pod.from_dict({"spec": spec}))) == image


def test_unit_without_its_pod_waits(app: App, api: Api) -> None:
    del api.objects["Pod", "kubeflow", "istio-aux-0"]
    app.deploy(config={"tenancy": True})
    assert app.status() == API_UNAVAILABLE


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (403, NO_TRUST),
        (422, BlockedStatus("the Kubernetes API rejects an object of this charm: no")),
    ],
)
def test_rejected_role_is_reported(app: App, api: Api, code: int, status: BlockedStatus) -> None:
    # Without trust, the API server rejects a role with rights that its writer does not have.
    api.rejected["ClusterRole"] = api_error(code)
    app.deploy(config={"tenancy": True})
    assert app.status() == status


def test_tenants_kinds_are_the_controllers() -> None:
    source = (REPOSITORY / "contract/src/kind.rs").read_text()
    constants = [re.search(rf"{name}: Kind(.*?);", source, re.S) for name in ("ROLE_BINDINGS", "POD_DEFAULTS")]
    kinds = [re.findall(r'"([\w.]+)"', constant[1])[-2:] for constant in constants if constant]
    assert [[kind.__name__, kind._api_info.plural] for kind in tenancy.TENANT_KINDS] == kinds
    names = (REPOSITORY / "contract/src/names.rs").read_text()
    assert re.search(r'const MANAGED_BY_LABEL: &str = "([^"]+)"', names)[1] in tenancy.KEPT_FOR_TENANTS  # type: ignore[index]
