"""Pods that are created while Istio's injector is unavailable."""

import pytest
from lightkube import ApiError
from ops import ActiveStatus

from tests.cluster.admission import (
    REJECTION,
    containers,
    is_injected,
    is_ready,
    no_injector,
    probe,
    rejection,
    rejections,
    the_pod,
)
from tests.cluster.model import Model
from tests.cluster.payloads import workload
from tests.cluster.waiting import until

REQUIRED = ActiveStatus("sidecars required, except for istiod and istio, istio-k8s, istio-pilot")


@pytest.fixture
def team(model: Model) -> str:
    """A namespace that is in the mesh, and is to be opted in."""
    return model.namespace(istio_injection="enabled")


def test_pod_is_rejected_until_the_injector_is_back(model: Model, team: str) -> None:
    app = model.deployed({"namespaces": team, "require-sidecar": True})
    assert app.status() == REQUIRED
    with no_injector(model):
        rejected = until("the policy to be in force", lambda: rejection(model, team))
        assert REJECTION in str(rejected)
        model.apply([workload("StatefulSet", "db", team)])
        assert until("the rejection of the StatefulSet's pod", lambda: rejections(model, team))
        assert the_pod(model, team, "db") is None
    until("the pod, by itself", lambda: is_ready(the_pod(model, team, "db")))
    assert "istio-proxy" in containers(the_pod(model, team, "db"))


def test_exempt_pods_are_admitted(model: Model, team: str) -> None:
    model.deployed({"namespaces": team, "require-sidecar": True})
    other = model.namespace(istio_injection="enabled")
    with no_injector(model):
        until("the policy to be in force", lambda: rejection(model, team))
        assert rejection(model, other) is None, "that namespace did not opt in"
        for labels in (
            {"sidecar_istio_io__inject": "false"},
            {"istio_aux_io__injection": "disabled"},
            {"app": "istiod"},
            {"app_kubernetes_io__name": "istio-aux"},
            {"operator_juju_is__name": "model"},
        ):
            assert rejection(model, team, **labels) is None, labels
        templated = probe(team)
        assert templated.metadata
        templated.metadata.annotations = {"inject.istio.io/templates": "grpc-simple"}
        model.admin.create(templated, dry_run=True)
        templated.metadata.annotations = {"inject.istio.io/templates": "sidecar, mine"}
        with pytest.raises(ApiError, match=REJECTION):
            model.admin.create(templated, dry_run=True)


def test_pod_without_sidecar_is_listed_and_restarted(model: Model, team: str) -> None:
    app = model.deployed({"namespaces": team})
    with no_injector(model):
        # The API server forgets the policy of the test before a moment after it is removed.
        until("the injector to be deleted", lambda: rejection(model, team) is None and not is_injected(model, team))
        model.apply([workload("StatefulSet", "db", team)])
        until("the pod", lambda: is_ready(the_pod(model, team, "db")))
        assert containers(the_pod(model, team, "db")) == {"main"}
        assert rejections(model, team) == []
    until("the injector to be back", lambda: is_injected(model, team))
    missed = app.act(0, "list-uninjected-pods", namespace=team)
    assert missed["pods"] == f"{team}/Pod/db-0 no-sidecar {team}/StatefulSet/db"
    app.act(0, "restart-uninjected-pods", namespace=team)
    assert app.act(0, "list-uninjected-pods", namespace=team)["count"] == 1, "a dry run restarts nothing"
    restarted = app.act(0, "restart-uninjected-pods", namespace=team, **{"dry-run": False})
    assert restarted["evicted"] == f"{team}/Pod/db-0 no-sidecar {team}/StatefulSet/db"
    until("the new pod", lambda: "istio-proxy" in containers(the_pod(model, team, "db")))
    until("the new pod to be ready", lambda: is_ready(the_pod(model, team, "db")))
    assert app.act(0, "list-uninjected-pods", namespace=team)["count"] == 0


def test_named_application_joins_the_mesh(model: Model) -> None:
    app = model.deployed({"applications": "katib"})
    until("the webhook to be called", lambda: is_injected(model, model.name, app_kubernetes_io__name="katib"))
    model.apply([workload("StatefulSet", "katib", model.name, {"app.kubernetes.io/name": "katib"})])
    until("its pod", lambda: is_ready(the_pod(model, model.name, "katib")))
    assert "istio-proxy" in containers(the_pod(model, model.name, "katib"))
    assert not is_injected(model, model.name, app_kubernetes_io__name="other")
    app.config["applications"] = ""
    app.update(0)
    until("its end", lambda: not is_injected(model, model.name, app_kubernetes_io__name="katib"))
