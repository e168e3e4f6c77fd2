"""Every order of events that Juju may send, on one reconcile path."""

import itertools
import json
import stat
from typing import Any

import pytest
from ops import ActiveStatus, BlockedStatus, WaitingStatus, pebble, testing

from tests.unit.api import Api, api_error
from tests.unit.juju import App, Clock
from tests.unit.seen import API_UNAVAILABLE, CONFIGURATION, INSTALLED, NO_TRUST, OURS, REMOVED, objects, trusted

# Install


def test_first_unit_installs_and_serves(app: App, api: Api) -> None:
    app.deploy()
    assert app.status() == ActiveStatus()
    assert objects(api) == INSTALLED
    assert app.served(0) == app.kept().current.text
    assert trusted(api) == {app.kept().current.ca.strip()}
    assert stat.S_IMODE(app.file(0).stat().st_mode) == 0o600
    assert app.container(0).service_statuses["webhook"] == pebble.ServiceStatus.ACTIVE


def events_of_a_start(app: App) -> dict[str, Any]:
    on = app.contexts[0].on
    return {
        "install": on.install(),
        "leader-elected": on.leader_elected(),
        "config-changed": on.config_changed(),
        "pebble-ready": on.pebble_ready(app.container(0)),
    }


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["install", "leader-elected", "config-changed", "pebble-ready"])), ids=" ".join
)
def test_order_of_the_first_events_does_not_matter(app: App, api: Api, order: tuple[str, ...]) -> None:
    app.add(0)
    for name in order:
        app.run(0, events_of_a_start(app)[name])
    assert app.status() == ActiveStatus()
    assert objects(api) == INSTALLED
    assert app.served(0) == app.kept().current.text


def test_hooks_before_the_peer_relation_wait(app: App, api: Api) -> None:
    app.add(0)
    app.run(0, app.contexts[0].on.install(), peers=False)
    assert app.status() == WaitingStatus("waiting for the peer relation")
    assert objects(api) == {}


def test_missing_container_does_not_delay_cluster_objects(app: App, api: Api) -> None:
    app.add(0, up=False)
    app.update(0)
    assert app.status() == WaitingStatus("waiting for Pebble in the container webhook")
    assert objects(api) == INSTALLED


def test_unit_waits_for_the_leaders_certificate(app: App) -> None:
    app.add(0)
    app.add(1)
    app.update(1)
    assert app.status(1) == WaitingStatus("waiting for the leader to issue a certificate")
    app.update(0)
    app.update(1)
    assert app.status(1) == ActiveStatus()


# Upgrade


def test_upgrade_keeps_certificate_and_deletes_old_objects(app: App, api: Api) -> None:
    app.deploy()
    kept = app.kept()
    labels = api.get(*CONFIGURATION)["metadata"]["labels"]
    api.put("Service", "istio-aux-webhook", "kubeflow", metadata={"labels": labels})
    api.get(*CONFIGURATION)["webhooks"][0]["timeoutSeconds"] = 30
    app.churn(0)
    app.run(0, app.contexts[0].on.upgrade_charm())
    app.run(0, app.contexts[0].on.pebble_ready(app.container(0)))
    assert objects(api) == INSTALLED
    assert app.kept() == kept
    assert app.served(0) == kept.current.text
    assert api.get(*CONFIGURATION)["webhooks"][0]["timeoutSeconds"] == 2


def test_stored_options_of_another_revision_are_ignored(app: App, api: Api) -> None:
    app.deploy()
    app.data["options"] = json.dumps({"log-level": "loud"})
    app.config = {"log-level": "louder"}
    app.update(0)
    assert app.status().message.startswith("invalid options; keeping the previous ones: log-level: ")
    assert objects(api) == INSTALLED


# Leader changes


def test_new_leader_takes_over_without_a_change(app: App, api: Api) -> None:
    app.deploy(2)
    before = (app.kept(), trusted(api), len(api.writes))
    app.leader = 1
    app.run(1, app.contexts[1].on.leader_elected())
    app.update(0)
    assert (app.kept(), trusted(api), len(api.writes)) == before
    assert [app.status(unit) for unit in (0, 1)] == [ActiveStatus(), ActiveStatus()]


def test_only_the_leader_writes_into_the_cluster(app: App, api: Api) -> None:
    app.deploy(3)
    writes = len(api.writes)
    del api.objects["Service", "kubeflow", "istio-aux-admission"]
    app.update(1)
    app.update(2)
    assert len(api.writes) == writes
    app.update(0)
    assert objects(api) == INSTALLED


# Scale


def test_scale_from_none_to_three_and_back(app: App, api: Api) -> None:
    api.put("Namespace", "mine", metadata={"labels": {"istio-aux.io/injection": "enabled"}})
    app.deploy(1, config={"namespaces": "team"})
    kept = app.kept()
    for unit in (1, 2):
        app.add(unit)
        app.start(unit)
    assert {app.served(unit) for unit in app.units} == {kept.current.text}
    app.planned = 1
    for unit in (2, 1):
        app.remove(unit)
        assert objects(api) == INSTALLED
    app.remove_all()
    assert objects(api) == {}
    assert api.labels("team") == {}
    assert api.labels("mine") == {"istio-aux.io/injection": "enabled"}
    app.planned = None
    app.deploy(1)
    assert objects(api) == INSTALLED
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}
    assert app.served(0) == app.kept().current.text


# Removal


@pytest.mark.parametrize("leader", [0, 1, 5], ids=["leader-first", "leader-last", "no-leader"])
@pytest.mark.parametrize("order", list(itertools.permutations(["peers", "stop", "remove"])), ids=" ".join)
def test_nothing_is_left_after_any_order_of_last_events(
    app: App, api: Api, leader: int, order: tuple[str, ...]
) -> None:
    app.deploy(2, config={"namespaces": "team", "require-sidecar": True, "tenancy": True})
    assert set(objects(api)) == set(OURS)
    app.planned, app.leader = 0, leader
    for unit in (0, 1):
        on = app.contexts[unit].on
        events = {"stop": on.stop(), "remove": on.remove()}
        for name in order:
            app.peers_changed(unit) if name == "peers" else app.run(unit, events[name])
            assert objects(api) == {}
            assert app.status(unit) == REMOVED
    assert api.labels("team") == {}


def test_removal_keeps_other_models_objects(app: App, api: Api) -> None:
    app.deploy()
    other = {"labels": {"app.juju.is/created-by": "istio-aux", "model.juju.is/id": "another"}}
    api.put("MutatingWebhookConfiguration", "istio-aux-other", metadata=other)
    app.remove_all()
    assert objects(api) == {"MutatingWebhookConfiguration": ["istio-aux-other"]}


def test_removal_keeps_another_application_of_the_model(app: App, api: Api) -> None:
    app.deploy()
    second = App("aux")
    second.deploy()
    second.remove_all()
    assert objects(api) == INSTALLED


def test_application_replaces_one_that_is_gone(app: App, api: Api) -> None:
    api.put("StatefulSet", "aux", "kubeflow", spec={"selector": {}, "template": {}, "serviceName": ""})
    App("aux").deploy()
    app.deploy()
    assert app.status() == BlockedStatus("application aux of this model is istio-aux already; remove one of the two")
    del api.objects["StatefulSet", "kubeflow", "aux"]
    app.update(0)
    assert app.status() == ActiveStatus()
    assert api.get(*CONFIGURATION)["metadata"]["labels"]["app.juju.is/created-by"] == "istio-aux"


def test_policy_of_an_earlier_model_is_deleted(app: App, api: Api) -> None:
    earlier = {"labels": {"app.juju.is/created-by": "istio-aux", "model.juju.is/id": "earlier"}}
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        api.put(kind, "istio-aux-kubeflow", metadata=earlier, spec={"policyName": "x", "validationActions": ["Deny"]})
    app.deploy()
    assert objects(api) == INSTALLED


def test_last_hook_waits_for_the_api(app: App, api: Api, clock: Clock) -> None:
    app.deploy()
    app.planned, api.broken = 0, api_error(503)
    app.run(0, app.contexts[0].on.stop())
    assert app.status() == API_UNAVAILABLE
    clock.on_sleep = lambda: setattr(api, "broken", None)
    app.run(0, app.contexts[0].on.remove())
    assert objects(api) == {}
    assert app.status() == REMOVED


@pytest.mark.parametrize("failure", [api_error(503), api_error(409), api_error(422)])
def test_last_hook_fails_if_the_api_fails(app: App, api: Api, failure: Exception) -> None:
    app.deploy()
    app.planned, api.broken = 0, failure
    with pytest.raises(testing.errors.UncaughtCharmError):
        app.run(0, app.contexts[0].on.remove())
    api.broken = None
    app.run(0, app.contexts[0].on.remove())
    assert objects(api) == {}


def test_last_hook_without_rights_does_not_fail(app: App, api: Api) -> None:
    app.deploy()
    app.planned, api.broken = 0, api_error(403)
    app.run(0, app.contexts[0].on.remove())
    assert app.status() == NO_TRUST


def test_last_hook_of_one_of_two_units_removes_nothing(app: App, api: Api) -> None:
    app.deploy(2)
    app.run(1, app.contexts[1].on.remove())
    assert objects(api) == INSTALLED


@pytest.mark.parametrize(("failure", "status"), [(api_error(403), NO_TRUST), (api_error(503), API_UNAVAILABLE)])
def test_failed_removal_is_reported_and_repeated(
    app: App, api: Api, failure: Exception, status: testing.UnknownStatus
) -> None:
    app.deploy()
    app.planned, api.broken = 0, failure
    app.run(0, app.contexts[0].on.stop())
    assert app.status() == status
    api.broken = None
    app.run(0, app.contexts[0].on.remove())
    assert objects(api) == {}
