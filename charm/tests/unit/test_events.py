"""Every order of events that Juju may send, on one reconcile path."""

import itertools
import json

import pytest
from ops import ActiveStatus, BlockedStatus, WaitingStatus, testing

from tests.unit.api import Api, api_error
from tests.unit.juju import SHIM, App, Clock
from tests.unit.seen import (
    API_UNAVAILABLE,
    CONFIGURATION,
    INSTALLED,
    NO_TRUST,
    OURS,
    REMOVED,
    WEBHOOK,
    objects,
    webhooks,
)

OPT_IN = {"istio-aux.io/injection": "enabled"}

# Install


def test_first_unit_installs_the_webhook(app: App, api: Api) -> None:
    app.deploy()
    assert app.status() == ActiveStatus()
    assert objects(api) == INSTALLED
    assert api.get(*WEBHOOK)["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["install", "leader_elected", "config_changed"])), ids=" ".join
)
def test_order_of_the_first_events_does_not_matter(app: App, api: Api, order: tuple[str, ...]) -> None:
    app.add(0)
    for name in order:
        app.run(0, name)
    assert app.status() == ActiveStatus()
    assert objects(api) == INSTALLED


def test_hooks_before_the_peer_relation_wait(app: App, api: Api) -> None:
    app.add(0)
    app.run(0, "install", peers=False)
    assert app.status() == WaitingStatus("waiting for the peer relation")
    assert objects(api) == {}


# Upgrade


def test_upgrade_deletes_old_objects(app: App, api: Api) -> None:
    app.deploy()
    labels = api.get(*CONFIGURATION)["metadata"]["labels"]
    api.put("Service", "istio-aux-admission", "kubeflow", metadata={"labels": labels})
    api.get(*CONFIGURATION)["webhooks"][-1]["timeoutSeconds"] = 30
    app.run(0, "upgrade_charm")
    assert objects(api) == INSTALLED
    assert api.get(*CONFIGURATION)["webhooks"][-1]["timeoutSeconds"] == 2


def test_stored_options_of_another_revision_are_ignored(app: App, api: Api) -> None:
    app.deploy()
    app.data["options"] = json.dumps({"log-level": "loud"})
    app.config = {"log-level": "louder"}
    app.update(0)
    assert app.status().message.startswith("invalid options; keeping the previous ones: log-level: ")
    assert objects(api) == INSTALLED


def test_reconciling_again_writes_nothing(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "team", "require-sidecar": True, "tenancy": True})
    writes = len(api.writes)
    app.update(0)
    assert len(api.writes) == writes


# Leader changes


def test_new_leader_takes_over_without_a_change(app: App, api: Api) -> None:
    app.deploy(2, config={"tenancy": True})
    before = len(api.writes)
    app.leader = 1
    app.run(1, "leader_elected")
    app.update(0)
    assert len(api.writes) == before
    assert [app.status(unit) for unit in (0, 1)] == [ActiveStatus(), ActiveStatus()]


def test_only_the_leader_writes_into_the_cluster(app: App, api: Api) -> None:
    app.deploy(3)
    writes = len(api.writes)
    del api.objects["Service", "kubeflow", "istio-aux-webhook"]
    app.update(1)
    app.update(2)
    assert len(api.writes) == writes
    app.update(0)
    assert objects(api) == INSTALLED


# Scale


def test_scale_sets_the_replicas(app: App, api: Api) -> None:
    app.deploy(1)
    for unit in (1, 2):
        app.add(unit)
    app.update(0)
    assert api.get(*WEBHOOK)["spec"]["replicas"] == 3


def test_scale_to_none_and_back_keeps_every_opt_in(app: App, api: Api) -> None:
    api.put("Namespace", "mine", metadata={"labels": OPT_IN})
    api.put("Namespace", "acted")
    app.deploy(1, config={"namespaces": "team"})
    app.act(0, "enable-namespace", namespace="acted", **{"istio-injection": True})
    app.remove_all()
    assert objects(api) == {}
    assert [api.labels(name) for name in ("team", "acted", "mine")] == [{}, {}, OPT_IN]
    app.planned = None
    app.deploy(1)
    assert objects(api) == INSTALLED
    assert api.labels("team") == OPT_IN
    assert api.labels("acted") == {**OPT_IN, "istio-injection": "enabled"}


# Removal


@pytest.mark.parametrize("leader", [0, 1, 5], ids=["leader-first", "leader-last", "no-leader"])
@pytest.mark.parametrize("order", list(itertools.permutations(["relation_changed", "stop", "remove"])), ids=" ".join)
def test_nothing_is_left_after_any_order_of_last_events(
    app: App, api: Api, leader: int, order: tuple[str, ...]
) -> None:
    app.deploy(2, config={"namespaces": "team", "require-sidecar": True, "tenancy": True})
    assert set(objects(api)) == set(OURS)
    app.planned, app.leader = 0, leader
    for unit, name in itertools.product((0, 1), order):
        app.run(unit, name, "peers" if name == "relation_changed" else "")
        assert objects(api) == {}
        assert app.status(unit) == REMOVED
    assert api.labels("team") == {}


def test_removal_keeps_the_pull_secret_of_others(app: App, api: Api) -> None:
    api.put("Secret", "istio-aux-secret", "kubeflow", metadata={"labels": {"app.juju.is/created-by": "istio-aux"}})
    app.deploy()
    app.remove_all()
    assert objects(api) == {"Secret": ["istio-aux-secret"]}


def test_removal_keeps_another_application_of_the_model(app: App, api: Api) -> None:
    app.deploy()
    second = App("aux")
    second.deploy()
    second.remove_all()
    assert objects(api) == INSTALLED


@pytest.mark.parametrize("model", ["kubeflow", "other"])
def test_application_replaces_one_that_is_gone(app: App, api: Api, model: str) -> None:
    api.put("StatefulSet", "aux", model, spec={"selector": {}, "template": {}, "serviceName": ""})
    earlier = testing.Model(name=model, uuid=app.model.uuid, type="kubernetes")
    App("aux", earlier).deploy()
    app.deploy()
    message = f"application aux of model {model} is istio-aux already; remove one of the two"
    assert app.status() == BlockedStatus(message)
    del api.objects["StatefulSet", model, "aux"]
    api.starts = False
    app.update(0)
    assert {each["failurePolicy"] for each in webhooks(api).values()} == {"Ignore"}, "its own has served no pod yet"
    api.starts = True
    app.update(0)
    app.update(0)
    assert app.status() == ActiveStatus()
    assert api.get(*CONFIGURATION)["metadata"]["labels"]["app.juju.is/created-by"] == "istio-aux"


@pytest.mark.parametrize(
    ("labels", "by"),
    [({"app.kubernetes.io/managed-by": "Helm"}, "Helm"), ({}, "kubectl"), ({"app.juju.is/created-by": "x"}, "kubectl")],
)
def test_installation_by_others_is_left_alone(app: App, api: Api, labels: dict[str, str], by: str) -> None:
    api.put(*CONFIGURATION, metadata={"labels": labels}, webhooks=[])
    app.deploy()
    what = f"{by}: MutatingWebhookConfiguration istio-aux"
    message = f"istio-aux is installed in this cluster already, by {what}; remove one of the two"
    assert app.status() == BlockedStatus(message)
    assert objects(api) == {"MutatingWebhookConfiguration": ["istio-aux"]}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ValidatingAdmissionPolicy", "istio-aux-ended"),
        ("ValidatingAdmissionPolicyBinding", "istio-aux-ended"),
        ("ClusterRole", "istio-aux-pipelines"),
    ],
)
def test_installation_without_a_webhook_is_left_alone(app: App, api: Api, kind: str, name: str) -> None:
    """As by the policy profile, or the tenants' half alone."""
    spec = {"policyName": name, "validationActions": ["Deny"]}
    api.put(kind, name, metadata={"labels": {"app.kubernetes.io/managed-by": "Helm"}}, spec=spec)
    before = dict(api.objects)
    app.deploy(config={"tenancy": True})
    message = f"istio-aux is installed in this cluster already, by Helm: {kind} {name}; remove one of the two"
    assert app.status() == BlockedStatus(message)
    assert api.objects == before
    app.remove_all()
    assert api.objects == before


def test_objects_of_another_application_of_the_model_are_left_alone(app: App, api: Api) -> None:
    """An application may be called as the charm's objects are."""
    labels = {"app.juju.is/created-by": "istio-aux-webhook", "model.juju.is/name": "kubeflow"}
    api.put("StatefulSet", "istio-aux-webhook", "kubeflow", spec={"selector": {}, "template": {}, "serviceName": ""})
    api.put("Service", "istio-aux-webhook", "kubeflow", metadata={"labels": labels})
    before = dict(api.objects)
    app.deploy()
    taken = "Service istio-aux-webhook is of application istio-aux-webhook of model kubeflow"
    assert app.status() == BlockedStatus(f"{taken}; delete it, or remove one of the two")
    assert api.objects == before
    app.remove_all()
    assert api.objects == before


def test_objects_of_an_earlier_revision_are_taken_over(app: App, api: Api) -> None:
    juju = {"app.juju.is/created-by": "istio-aux", "model.juju.is/name": "kubeflow"}
    for kind in ("ClusterRole", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        spec = {"policyName": "istio-aux-tenancy", "validationActions": ["Deny"]}
        earlier = {**juju, "app.kubernetes.io/part-of": "istio-aux"}
        api.put(kind, "istio-aux-tenancy", metadata={"labels": earlier}, spec=spec)
    app.deploy(config={"tenancy": True})
    assert app.status() == ActiveStatus()


def test_policy_of_an_earlier_model_is_deleted(app: App, api: Api) -> None:
    juju = {"app.juju.is/created-by": "istio-aux", "model.juju.is/name": "kubeflow", "model.juju.is/id": "earlier"}
    earlier = {**juju, "app.kubernetes.io/part-of": "istio-aux"}
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        spec = {"policyName": "x", "validationActions": ["Deny"]}
        api.put(kind, "istio-aux-require-sidecar", metadata={"labels": earlier}, spec=spec)
    app.deploy()
    assert objects(api) == INSTALLED


def test_object_of_another_kind_is_no_longer_kept(app: App, api: Api) -> None:
    juju = {"app.juju.is/created-by": "istio-aux", "model.juju.is/name": "kubeflow"}
    earlier = {**juju, "app.kubernetes.io/part-of": "istio-aux"}
    api.put("NetworkPolicy", "istio-aux-webhook", "kubeflow", metadata={"labels": earlier}, spec={"podSelector": {}})
    app.deploy()
    assert objects(api) == INSTALLED


def test_last_hook_waits_for_the_api(app: App, api: Api, clock: Clock) -> None:
    app.deploy()
    app.planned, api.broken = 0, api_error(503)
    app.run(0, "stop")
    assert app.status() == API_UNAVAILABLE
    clock.on_sleep = lambda: setattr(api, "broken", None)
    app.run(0, "remove")
    assert objects(api) == {}
    assert app.status() == REMOVED


@pytest.mark.parametrize("failure", [api_error(503), api_error(409), api_error(422)])
def test_last_hook_fails_if_the_api_fails(app: App, api: Api, failure: Exception) -> None:
    app.deploy()
    app.planned, api.broken = 0, failure
    with pytest.raises(testing.errors.UncaughtCharmError):
        app.run(0, "remove")
    api.broken = None
    app.run(0, "remove")
    assert objects(api) == {}


def test_last_hook_fails_after_a_rejected_label(app: App, api: Api) -> None:
    for name in ("guarded", "owned"):
        api.put("Namespace", name)
    app.deploy(config={"namespaces": "guarded,owned,team"})
    app.planned = 0
    api.refused |= {"guarded", "owned"}
    reasons = "guarded: labels are owned by the platform; owned: labels are owned by the platform"
    with pytest.raises(testing.errors.UncaughtCharmError, match=reasons):
        app.run(0, "remove")
    assert api.labels("team") == {}, "the others are restored"


def test_removal_without_rights_is_reported_and_repeated(app: App, api: Api) -> None:
    app.deploy()
    app.planned, api.broken = 0, api_error(403)
    for event in ("stop", "remove"):
        app.run(0, event)
        assert app.status() == NO_TRUST
    api.broken = None
    app.run(0, "remove")
    assert objects(api) == {}


def test_last_hook_of_one_of_two_units_removes_nothing(app: App, api: Api) -> None:
    app.deploy(2)
    app.planned = 1
    app.run(1, "remove")
    assert objects(api) == INSTALLED


# The mesh, by relation


def test_charms_join_by_relation_and_label_themselves(app: App, api: Api) -> None:
    app.config = SHIM
    app.deploy()
    writes = len(api.writes)
    app.relate(0, testing.Relation("service-mesh", id=7, remote_app_name="katib-controller"))
    data = app.relation(0, "service-mesh").local_app_data
    assert json.loads(data["labels"]) == {"istio-aux.io/injection": "enabled", "sidecar.istio.io/inject": "true"}
    assert json.loads(data["mesh_type"]) == "istio"
    assert len(api.writes) == writes, "nothing of the charm's is written"


def test_labels_are_handed_out_once_the_webhook_serves_and_stay(app: App, api: Api) -> None:
    api.starts = False
    app.config = SHIM
    app.deploy()
    app.relate(0, testing.Relation("service-mesh", id=7, remote_app_name="katib-controller"))
    app.run(0, "config_changed")
    assert "labels" not in app.relation(0, "service-mesh").local_app_data
    for status in ({"availableReplicas": 1}, {}):
        api.get(*WEBHOOK)["status"] = status
        app.update(0)
        assert "labels" in app.relation(0, "service-mesh").local_app_data
