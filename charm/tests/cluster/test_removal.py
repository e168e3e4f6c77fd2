"""After every way in which an application goes, pods of every kind are admitted within a minute."""

import time
from collections.abc import Callable

import pytest

from tests.cluster.admission import REJECTION, rejection
from tests.cluster.model import Model
from tests.cluster.removals import by_force, by_hooks, with_its_model
from tests.cluster.waiting import until
from tests.unit.juju import App

MINUTE = 60
SELECTED = "app.kubernetes.io/part-of=kubeflow-profile"
KINDS = ("Always", "OnFailure", "Never")


@pytest.mark.parametrize("go", [by_hooks, by_force, with_its_model])
def test_pods_are_admitted_after_the_application_is_gone(model: Model, go: Callable[[Model, App], None]) -> None:
    # Of a revision that no injector serves: their pods are to have a sidecar, and come without.
    team = model.namespace(istio_io__rev="none")
    profile = model.namespace(istio_io__rev="none", app_kubernetes_io__part_of="kubeflow-profile")
    app = model.deployed({"namespaces": team, "namespace-selector": SELECTED, "require-sidecar": True})
    for namespace in (team, profile):
        until("the policy to be in force", lambda namespace=namespace: rejection(model, namespace))
        assert REJECTION in str(rejection(model, namespace))
        assert REJECTION in str(rejection(model, namespace, "Never"))
    go(model, app)
    began = time.monotonic()
    for namespace in (team, profile):
        for kind in KINDS:
            until(
                f"a pod of {kind} in {namespace} to be admitted",
                lambda namespace=namespace, kind=kind: rejection(model, namespace, kind) is None,
            )
    assert time.monotonic() - began < MINUTE
