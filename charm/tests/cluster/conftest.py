"""The charm against the API server of KUBECONFIG, as an account with the rights that Juju gives an application."""

import os
import pathlib
from collections.abc import Iterator

import lightkube
import pytest
from lightkube.config.kubeconfig import KubeConfig
from lightkube.models.core_v1 import Container, PodSchedulingGate, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

import webhook
from tests.cluster.kubeflow import kubeflow, no_other_controller
from tests.cluster.model import Model

__all__ = ["kubeflow", "no_other_controller"]


@pytest.fixture(autouse=True)
def webhook_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets units go on as if their webhooks were ready: no Pebble starts one."""
    monkeypatch.setattr("webhook.is_ready", lambda: True)


@pytest.fixture(scope="session")
def admin() -> lightkube.Client:
    """The administrator of the cluster of KUBECONFIG."""
    file = os.environ.get("KUBECONFIG")
    if not file:
        pytest.fail("KUBECONFIG is not set; next: hack/cluster/cluster run, or a cluster of your own with Istio")
    os.environ["ISTIO_AUX_ADMIN_KUBECONFIG"] = file
    return lightkube.Client(KubeConfig.from_file(file))


@pytest.fixture
def untrusted(admin: lightkube.Client, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model whose application has rights in its own namespace only."""
    model = Model(admin, tmp_path, monkeypatch)
    yield model
    model.end()


@pytest.fixture
def model(untrusted: Model) -> Model:
    """A model whose application is trusted."""
    untrusted.trust()
    return untrusted


@pytest.fixture
def unit_pod(untrusted: Model) -> None:
    """The pod of unit 0, which names the webhook's image as Juju's do, and never runs."""
    image = os.environ.get("WEBHOOK_IMAGE", "registry.invalid/istio-aux/webhook:0.1.0")
    spec = PodSpec(
        containers=[Container(name=webhook.CONTAINER, image=image)],
        schedulingGates=[PodSchedulingGate(name="istio-aux.io/never-runs")],
    )
    untrusted.admin.create(Pod(metadata=ObjectMeta(name="istio-aux-0", namespace=untrusted.name), spec=spec))
