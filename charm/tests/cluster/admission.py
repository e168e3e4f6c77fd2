"""Removes Istio's injectors for a while, and asks the API server whether it rejects pods.

The injectors serve the whole cluster, so no other test may run there meanwhile.
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

REJECTION = "Istio's injector did not add it"


@contextlib.contextmanager
def no_injector(model: Model) -> Iterator[None]:
    """Deletes Istio's injectors, and creates them again in any case."""
    selector: dict[str, Any] = {"app": "sidecar-injector"}
    saved = list(model.admin.list(MutatingWebhookConfiguration, labels=selector))
    assert saved, "the cluster has no injector of Istio's"
    with contextlib.ExitStack() as stack:
        for each in saved:
            assert each.metadata
            kept = each.metadata
            model.admin.delete(MutatingWebhookConfiguration, str(kept.name))
            each.metadata = ObjectMeta(name=kept.name, labels=kept.labels, annotations=kept.annotations)
            stack.callback(model.admin.create, each)
        yield


def the_pod(model: Model, namespace: str, app: str) -> Pod | None:
    pods = list(model.admin.list(Pod, namespace=namespace, labels={"app": app}))
    return pods[0] if pods else None


def containers(pod: Pod | None) -> set[str]:
    """Returns the names of a pod's containers; none if there is no pod."""
    spec = pod.spec if pod else None
    return {each.name for each in (*spec.containers, *(spec.initContainers or []))} if spec else set()


def regular_containers(pod: Pod | None) -> set[str]:
    """Returns the names of a pod's containers that are not init containers or native sidecars."""
    return {each.name for each in pod.spec.containers} if pod and pod.spec else set()


def ended(pod: Pod | None) -> set[str]:
    """Returns the names of the containers that have ended."""
    statuses = (pod.status.containerStatuses if pod and pod.status else None) or []
    return {status.name for status in statuses if status.state and status.state.terminated}


def is_ready(pod: Pod | None) -> bool:
    conditions = (pod.status.conditions if pod and pod.status else None) or []
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def rejections(model: Model, namespace: str) -> list[str]:
    events = model.admin.list(Event, namespace=namespace)
    return [
        str(event.message) for event in events if event.reason == "FailedCreate" and REJECTION in str(event.message)
    ]


def probe(namespace: str, restart_policy: str = "Always", container: str = "main", **labels: str) -> Pod:
    """Returns a pod of one container, to ask the API server about."""
    named = {spelled(label): value for label, value in labels.items()}
    # The volume of a token would have another name each time.
    spec = PodSpec([payload(container)], restartPolicy=restart_policy, automountServiceAccountToken=False)
    return Pod(metadata=ObjectMeta(name="probe", namespace=namespace, labels=named), spec=spec)


def admitted(model: Model, namespace: str, restart_policy: str = "Always", **labels: str) -> Pod:
    """Returns a pod as the API server would admit it now. Raises ApiError if it would reject it."""
    return model.admin.create(probe(namespace, restart_policy, **labels), dry_run=True)


def rejection(model: Model, namespace: str, restart_policy: str = "Always", **labels: str) -> str | None:
    """Returns the reason if the API server would reject a pod now; None if it would admit it."""
    try:
        admitted(model, namespace, restart_policy, **labels)
    except ApiError as error:
        return str(error)
    return None


def is_injected(model: Model, namespace: str, **labels: str) -> bool:
    """Returns true if a pod would get its sidecar now."""
    return "istio-proxy" in containers(admitted(model, namespace, **labels))


def gets_its_shim(model: Model, namespace: str) -> bool:
    """Returns true if a pod that runs to completion would get the shim now."""
    return "aux-shim" in containers(admitted(model, namespace, "Never"))
