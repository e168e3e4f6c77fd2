"""Fixtures of the unit tests."""

import lightkube
import pytest

from tests.unit.api import Api
from tests.unit.juju import App, Clock


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """A cluster with the model's namespace, Juju's model operator, and the application's StatefulSet."""
    api = Api()
    template = {"template": {"metadata": {"labels": {}}, "spec": {"containers": []}}, "selector": {}}
    api.put("Namespace", "kubeflow")
    api.put("Namespace", "team")
    api.put("Deployment", "modeloperator", "kubeflow", spec=template)
    api.put("StatefulSet", "istio-aux", "kubeflow", spec={**template, "serviceName": "istio-aux-endpoints"})
    monkeypatch.setattr(lightkube, "Client", api.client)
    return api


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The charm's clock. Sleeping advances it."""
    clock = Clock()
    monkeypatch.setattr("charm._now", lambda: clock.now)
    monkeypatch.setattr("time.sleep", clock.sleep)
    return clock


@pytest.fixture
def app(api: Api, clock: Clock) -> App:
    """An application without units."""
    return App()
