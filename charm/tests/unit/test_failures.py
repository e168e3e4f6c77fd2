"""The cluster rejects calls, pods are replaced, the webhook is not healthy."""

import dataclasses
import pathlib
import re

import httpx2
import ops
import pytest
from ops import ActiveStatus, BlockedStatus, WaitingStatus, pebble, testing

from tests.unit.api import Api, api_error
from tests.unit.juju import App
from tests.unit.seen import API_UNAVAILABLE, INSTALLED, NO_TRUST, objects

# The cluster rejects calls


def test_missing_trust_is_reported_with_the_command(app: App, api: Api) -> None:
    api.broken = api_error(403, "cannot patch resource")
    app.deploy()
    assert app.status() == NO_TRUST
    assert app.served(0), "the webhook runs, although the API server does not call it"
    api.broken = None
    app.run(0, app.contexts[0].on.config_changed())
    assert app.status() == ActiveStatus()
    assert objects(api) == INSTALLED


@pytest.mark.parametrize(
    "failure", [httpx2.ConnectError("refused"), httpx2.ReadTimeout(""), api_error(503), api_error(429), api_error(409)]
)
def test_unavailable_api_is_waited_for(app: App, api: Api, failure: Exception) -> None:
    api.broken = failure
    app.deploy()
    assert app.status() == API_UNAVAILABLE
    api.broken = None
    app.update(0)
    assert app.status() == ActiveStatus()


@pytest.mark.parametrize("code", [400, 404, 422])
def test_rejection_by_the_api_is_reported(app: App, api: Api, code: int) -> None:
    api.rejected["Service"] = api_error(code, "spec.ports: too many")
    app.deploy()
    assert app.status() == BlockedStatus("the Kubernetes API rejects an object of this charm: spec.ports: too many")


def test_second_application_changes_nothing(app: App, api: Api) -> None:
    app.deploy()
    before = dict(api.objects)
    second = App("aux")
    second.deploy()
    message = "application istio-aux of this model is istio-aux already; remove one of the two"
    assert second.status() == BlockedStatus(message)
    assert api.objects == before


# Pods are replaced


def test_new_pod_is_configured(app: App) -> None:
    app.deploy(2)
    app.churn(1)
    app.run(1, app.contexts[1].on.pebble_ready(app.container(1)))
    assert app.served(1) == app.kept().current.text
    assert app.status(1) == ActiveStatus()


def test_failing_check_is_reported(app: App) -> None:
    app.deploy()
    infos = [
        testing.CheckInfo("live", level=pebble.CheckLevel.ALIVE, startup=pebble.CheckStartup.ENABLED, threshold=3),
        testing.CheckInfo(
            "ready",
            level=pebble.CheckLevel.READY,
            startup=pebble.CheckStartup.ENABLED,
            status=pebble.CheckStatus.DOWN,
            failures=3,
            threshold=3,
        ),
    ]
    app.change_container(0, check_infos=frozenset(infos))
    app.run(0, app.contexts[0].on.pebble_check_failed(app.container(0), infos[1]))
    assert app.status() == WaitingStatus("waiting for the webhook: its checks fail: ready; see its log")
    well = dataclasses.replace(infos[1], status=pebble.CheckStatus.UP, failures=0)
    app.change_container(0, check_infos=frozenset({infos[0], well}))
    app.run(0, app.contexts[0].on.pebble_check_recovered(app.container(0), well))
    assert app.status() == ActiveStatus()


def is_serving(api: Api, unit: int) -> bool:
    labels = api.get("Pod", f"istio-aux-{unit}", "kubeflow")["metadata"].get("labels", {})
    return labels.get("istio-aux.io/serving") == "true"


def test_unit_joins_the_service_once_it_is_ready(app: App, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as starting:
        starting.setattr("webhook.is_ready", lambda: False)
        app.deploy()
        assert app.status() == WaitingStatus("waiting for the webhook, which is not ready; see its log")
        assert not is_serving(api, 0)
    app.update(0)
    assert app.status() == ActiveStatus()
    assert is_serving(api, 0)
    writes = len(api.writes)
    app.update(0)
    assert len(api.writes) == writes


def test_missing_pod_is_not_a_failure(app: App, api: Api) -> None:
    del api.objects["Pod", "kubeflow", "istio-aux-0"]
    app.deploy()
    assert app.status() == ActiveStatus()


def test_kill_delay_is_longer_than_the_drain(app: App) -> None:
    app.deploy()
    configuration = (pathlib.Path(__file__).parents[3] / "docs/configuration.md").read_text()
    drain = re.search(r"`--drain-delay[^|]*\|[^\n]*?`?(\d+)s", configuration)
    assert drain
    delay = app.container(0).plan.services["webhook"].kill_delay
    assert int(str(delay).rstrip("s")) > int(drain[1])


@pytest.mark.parametrize("call", ["replan", "pull", "push"])
def test_webhook_that_does_not_start_is_reported(app: App, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise pebble.ConnectionError("cannot start service: exited quickly with code 1")

    with monkeypatch.context() as broken:
        broken.setattr(ops.Container, call, fail)
        app.deploy()
        message = "waiting for the webhook, which does not start; see juju debug-log and its log"
        assert app.status() == WaitingStatus(message)
    app.update(0)
    assert app.status() == ActiveStatus()
