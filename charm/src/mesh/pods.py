"""Compares what a pod should have of the mesh and of istio-aux with what it has: pure."""

from lightkube.models.core_v1 import Container, PodSpec
from lightkube.resources.core_v1 import Namespace, Pod

import names
from application import Application
from cluster import metadata
from mesh import namespaces
from settings import Settings

NO_SHIM, NO_SIDECAR, NO_HOLD = "no-shim", "no-sidecar", "no-hold"
_WITHOUT_SHIM, _WITHOUT_HOLD = ("off", "hold"), ("off",)
"""Values of the mode annotation for which the webhook adds no shim, or no startup hold."""


def missed(pod: Pod, namespace: Namespace, application: Application, settings: Settings) -> str | None:
    """Returns what a pod that is opted in, by its namespace or itself, should have and has not.

    None for a pod that has ended, and for one that the webhook left unchanged for a reason in its status annotation.
    """
    if has_ended(pod) or not _is_opted_in(pod, namespace, application, settings):
        return None
    is_ambient = namespaces.is_ambient(namespace, pod)
    needs_sidecar = _needs_sidecar(pod, namespace, is_named=_is_named(pod, application, settings))
    if needs_sidecar and not is_ambient and not _proxies(pod):
        return NO_SIDECAR
    beside_proxy = _missed_beside_proxy(pod) or ""
    is_given = {NO_SHIM: settings.has_shim_image, NO_HOLD: not is_ambient}
    return beside_proxy if is_given.get(beside_proxy) else None


def has_ended(pod: Pod) -> bool:
    """Returns true if the pod's containers have ended for good."""
    return bool(pod.status and pod.status.phase in ("Succeeded", "Failed"))


def _is_opted_in(pod: Pod, namespace: Namespace, application: Application, settings: Settings) -> bool:
    labels = metadata.labels(pod)
    if labels.get(names.INJECTION_LABEL) == names.DISABLED or metadata.name(namespace) == names.NEVER_INJECTED:
        return False
    if labels.get(names.POD_APPLICATION) in application.pod_names or labels.get("app") == "istiod":
        return False
    if any(label in labels for label in names.MODEL_OPERATOR_LABELS):
        return False
    if _is_named(pod, application, settings) or labels.get(names.INJECTION_LABEL) == names.ENABLED:
        return True
    return namespaces.is_opted_in(namespace, settings.selector)


def _is_named(pod: Pod, application: Application, settings: Settings) -> bool:
    """Returns true for pods of the option `applications`, which are labelled as they are created."""
    name = metadata.labels(pod).get(names.POD_APPLICATION)
    return metadata.namespace(pod) == application.model and name in settings.applications


def _needs_sidecar(pod: Pod, namespace: Namespace, *, is_named: bool) -> bool:
    labels = {**({names.ISTIO_INJECT: "true"} if is_named else {}), **metadata.labels(pod)}
    inject = labels.get(names.ISTIO_INJECT, metadata.annotations(pod).get(names.ISTIO_INJECT))
    templates = metadata.annotations(pod).get(names.ISTIO_TEMPLATES, "sidecar")
    if inject == "false" or _spec(pod).hostNetwork or "sidecar" not in map(str.strip, templates.split(",")):
        return False
    asks = labels.get(names.ISTIO_INJECT) == "true" or names.ISTIO_REVISION_LABEL in labels
    return namespaces.is_injected(namespace) or (asks and names.ISTIO_INJECTION_LABEL not in metadata.labels(namespace))


def _missed_beside_proxy(pod: Pod) -> str | None:
    """Returns what a pod with a classic proxy misses. The startup hold may also be the mesh's default."""
    annotations, containers = metadata.annotations(pod), _spec(pod).containers
    has_classic_proxy = any(container.name == names.PROXY_CONTAINER for container in containers)
    if not has_classic_proxy or names.STATUS_ANNOTATION in annotations:
        return None
    mode = annotations.get(names.MODE_ANNOTATION)
    if _spec(pod).restartPolicy in ("Never", "OnFailure"):
        has_shim = names.SHIM_LABEL in metadata.labels(pod)
        return None if has_shim or mode in _WITHOUT_SHIM else NO_SHIM
    is_held = names.HOLD_FIELD in annotations.get(names.PROXY_CONFIG_ANNOTATION, "")
    is_held = is_held or any(proxy.lifecycle and proxy.lifecycle.postStart for proxy in _proxies(pod))
    return None if is_held or len(containers) == 1 or mode in _WITHOUT_HOLD else NO_HOLD


def _proxies(pod: Pod) -> list[Container]:
    containers = [*_spec(pod).containers, *(_spec(pod).initContainers or [])]
    return [container for container in containers if container.name == names.PROXY_CONTAINER]


def _spec(pod: Pod) -> PodSpec:
    return pod.spec or PodSpec(containers=[])
