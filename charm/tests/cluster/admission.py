"""Istio's injectors taken away, and what the API server says of pods meanwhile.

This takes the injectors away from the whole cluster: nothing else may run there meanwhile.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Event, Pod

from tests.cluster.model import Model, spelled
from tests.cluster.payloads import payload

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


def is_refused(model: Model, namespace: str, restart_policy: str = "Always", **labels: str) -> str | None:
    """Why a pod would be refused now; None where it would be admitted."""
    named = {spelled(label): value for label, value in labels.items()}
    spec = PodSpec([payload()], restartPolicy=restart_policy)
    pod = Pod(metadata=ObjectMeta(name="probe", namespace=namespace, labels=named), spec=spec)
    try:
        model.admin.create(pod, dry_run=True)
    except ApiError as error:
        return str(error)
    return None


def is_injected(model: Model, namespace: str) -> bool:
    """Whether a pod would get its sidecar now."""
    pod = Pod(metadata=ObjectMeta(name="probe", namespace=namespace), spec=PodSpec([payload()]))
    return "istio-proxy" in containers(model.admin.create(pod, dry_run=True))
