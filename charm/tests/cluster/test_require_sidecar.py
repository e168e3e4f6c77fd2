"""Pods that come while Istio's injector is away.

These tests take the injector away from the whole cluster: nothing else may run there meanwhile.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Event, Pod
from ops import ActiveStatus

from tests.cluster.model import Model
from tests.cluster.payloads import payload, stateful_set
from tests.cluster.waiting import until

REFUSAL = "Istio's injector did not add it"


@contextlib.contextmanager
def no_injector(model: Model) -> Iterator[None]:
    """Istio's injectors are away, and come back whatever happens."""
    selector: dict[str, Any] = {"app": "sidecar-injector"}
    saved = list(model.admin.list(MutatingWebhookConfiguration, labels=selector))
    assert saved, "the cluster has no injector of Istio's"
    for each in saved:
        assert each.metadata
        model.admin.delete(MutatingWebhookConfiguration, str(each.metadata.name))
    try:
        yield
    finally:
        for each in saved:
            assert each.metadata
            kept = each.metadata
            each.metadata = ObjectMeta(name=kept.name, labels=kept.labels, annotations=kept.annotations)
            model.admin.create(each)


def the_pod(model: Model, namespace: str, app: str) -> Pod | None:
    pods = list(model.admin.list(Pod, namespace=namespace, labels={"app": app}))
    return pods[0] if pods else None


def containers(pod: Pod) -> set[str]:
    assert pod.spec
    return {each.name for each in (*pod.spec.containers, *(pod.spec.initContainers or []))}


def is_ready(pod: Pod | None) -> bool:
    conditions = (pod.status.conditions if pod and pod.status else None) or []
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def refusals(model: Model, namespace: str) -> list[str]:
    events = model.admin.list(Event, namespace=namespace)
    return [str(event.message) for event in events if event.reason == "FailedCreate" and REFUSAL in str(event.message)]


def is_refused(model: Model, namespace: str, **labels: str) -> str | None:
    """Why a pod would be refused now; None where it would be admitted."""
    named = {label.replace("__", "/").replace("_", "."): value for label, value in labels.items()}
    pod = Pod(metadata=ObjectMeta(name="probe", namespace=namespace, labels=named), spec=PodSpec([payload()]))
    try:
        model.admin.create(pod, dry_run=True)
    except ApiError as error:
        return str(error)
    return None


def is_injected(model: Model, namespace: str) -> bool:
    """Whether a pod would get its sidecar now."""
    pod = Pod(metadata=ObjectMeta(name="probe", namespace=namespace), spec=PodSpec([payload()]))
    return "istio-proxy" in containers(model.admin.create(pod, dry_run=True))


@pytest.fixture
def team(model: Model) -> str:
    """A namespace that is in the mesh, and is to be opted in."""
    return model.namespace(istio_injection="enabled")


def test_pod_is_refused_until_the_injector_is_back(model: Model, team: str) -> None:
    app = model.app()
    app.config = {"namespaces": team, "require-sidecar": True}
    app.deploy(1)
    assert app.status() == ActiveStatus()
    with no_injector(model):
        refused = until("the policy to be in force", lambda: is_refused(model, team))
        assert REFUSAL in str(refused)
        model.admin.create(stateful_set("db", team))
        assert until("the refusal of the StatefulSet's pod", lambda: refusals(model, team))
        assert the_pod(model, team, "db") is None
    until("the pod, by itself", lambda: is_ready(the_pod(model, team, "db")))
    pod = the_pod(model, team, "db")
    assert pod
    assert "istio-proxy" in containers(pod)


def test_exempt_pods_are_admitted(model: Model, team: str) -> None:
    app = model.app()
    app.config = {"namespaces": team, "require-sidecar": True}
    app.deploy(1)
    other = model.namespace(istio_injection="enabled")
    with no_injector(model):
        until("the policy to be in force", lambda: is_refused(model, team))
        assert is_refused(model, other) is None, "that namespace did not opt in"
        for labels in (
            {"sidecar_istio_io__inject": "false"},
            {"istio-aux_io__injection": "disabled"},
            {"app": "istiod"},
            {"app_kubernetes_io__name": "istio-aux"},
            {"operator_juju_is__name": "model"},
        ):
            assert is_refused(model, team, **labels) is None, labels


def test_without_the_option_the_pod_comes_up_without_a_sidecar_and_is_found_and_rolled(model: Model, team: str) -> None:
    app = model.app()
    app.config = {"namespaces": team}
    app.deploy(1)
    with no_injector(model):
        # The API server forgets the policy of the test before a moment after it is removed.
        until("the injector to be away", lambda: is_refused(model, team) is None and not is_injected(model, team))
        model.admin.create(stateful_set("db", team))
        until("the pod", lambda: is_ready(the_pod(model, team, "db")))
        pod = the_pod(model, team, "db")
        assert pod
        assert containers(pod) == {"main"}
        assert refusals(model, team) == []
    until("the injector to be back", lambda: is_injected(model, team))
    missed = app.act(0, "list-uninjected-pods", namespace=team)
    assert missed["pods"] == f"{team}/Pod/db-0 no-sidecar {team}/StatefulSet/db"
    app.act(0, "restart-uninjected-pods", namespace=team)
    assert app.act(0, "list-uninjected-pods", namespace=team)["count"] == 1, "a dry run rolls nothing"
    rolled = app.act(0, "restart-uninjected-pods", namespace=team, **{"dry-run": False})
    assert rolled["restarted"] == f"{team}/StatefulSet/db"
    until("the new pod", lambda: (pod := the_pod(model, team, "db")) and "istio-proxy" in containers(pod))
    until("the new pod to be ready", lambda: is_ready(the_pod(model, team, "db")))
    assert app.act(0, "list-uninjected-pods", namespace=team)["count"] == 0


def test_chosen_workload_joins_the_mesh_and_leaves_it(model: Model) -> None:
    plain = model.namespace()
    app = model.app()
    app.deploy(1)
    model.admin.create(stateful_set("db", plain))
    until("the pod", lambda: is_ready(the_pod(model, plain, "db")))
    assert app.act(0, "enable-namespace", namespace=plain, workloads="db")["changed"] == "db"
    until("its sidecar", lambda: (pod := the_pod(model, plain, "db")) and "istio-proxy" in containers(pod))
    assert app.act(0, "disable-namespace", namespace=plain)["workloads"] == "db"
    until("its end", lambda: (pod := the_pod(model, plain, "db")) and "istio-proxy" not in containers(pod))
