"""Finds the owners of pods, and makes patches of their pod templates. Pure."""

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from lightkube.resources.apps_v1 import DaemonSet, Deployment, ReplicaSet, StatefulSet
from lightkube.resources.core_v1 import Pod

import names
from cluster import metadata
from cluster.client import Patch
from mesh import label_ownership
from mesh.label_ownership import ACTION, PROTECTION, LabelOwnership, Labels

Workload = StatefulSet | Deployment
RESTARTABLE: Mapping[str, type[StatefulSet | Deployment | DaemonSet]] = {
    "StatefulSet": StatefulSet,
    "Deployment": Deployment,
    "DaemonSet": DaemonSet,
}
"""Kinds that replace their pods when their template changes."""

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
"""The annotation that kubectl rollout restart sets."""

_IN_MESH = {names.INJECTION_LABEL: names.ENABLED, names.ISTIO_INJECT: "true"}
_EXCLUDED = {names.ISTIO_INJECT: "false", names.AMBIENT_LABEL: names.NOT_AMBIENT}


@dataclasses.dataclass(frozen=True, order=True)
class Owner:
    """The object that replaces a pod."""

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}"


def owner(thing: Pod | ReplicaSet) -> Owner | None:
    """Returns the controller of an object, one step up; None if it has none."""
    references = metadata.of(thing).ownerReferences or []
    controllers = [reference for reference in references if reference.controller]
    if not controllers:
        return None
    return Owner(metadata.namespace(thing) or "", controllers[0].kind, controllers[0].name)


def restart(now: datetime.datetime) -> Patch:
    """Returns a patch that replaces all pods, as the workload's strategy says."""
    return _template({"annotations": {RESTARTED_AT: now.isoformat(timespec="seconds")}})


def exclude_from_mesh(workload: Workload, application: str) -> Patch | None:
    """Excludes a workload's pods from the mesh; None if its template has both labels already, with any value.

    Both labels are set at once, because each change of the template replaces the pods.
    """
    current = _template_labels(workload)
    desired = {label: value for label, value in _EXCLUDED.items() if label not in current}
    return _own(workload, application, PROTECTION, desired, {}) if desired else None


def add_to_mesh(workload: Workload, application: str, controller_ports: Iterable[str]) -> Patch | None:
    """Opts a workload's pods into Istio and istio-aux; None if they are opted in already.

    The init container of a charm's pod calls the Juju controller, and istio-cni redirects its traffic to a proxy that
    does not run yet (istio#23802). So connections to the controller are excluded from the redirection.
    """
    annotations: dict[str, str] = {}
    if _has_charm(workload):
        listed = _template_annotations(workload).get(names.EXCLUDED_OUTBOUND_PORTS, "")
        ports = dict.fromkeys([*filter(None, listed.split(",")), *controller_ports])
        annotations[names.EXCLUDED_OUTBOUND_PORTS] = ",".join(ports)
    return _own(workload, application, ACTION, _IN_MESH, annotations)


def restore(workload: Workload, source: str, application: str | None = None) -> Patch | None:
    """Restores what this charm changed on a workload's pods for this source; None if it changed nothing."""
    owned = LabelOwnership.of(metadata.annotations(workload))
    if not owned or owned.source != source or application not in (None, owned.application):
        return None
    template = {
        "labels": label_ownership.restored(_template_labels(workload), owned.labels),
        "annotations": label_ownership.restored(_template_annotations(workload), owned.annotations),
    }
    return {"metadata": {"annotations": {names.LABELLED_BY: None}}, **_template(template)}


def _own(workload: Workload, application: str, source: str, labels: Labels, annotations: Labels) -> Patch | None:
    current = _template_labels(workload), _template_annotations(workload)
    template = {
        "labels": label_ownership.missing(current[0], labels),
        "annotations": label_ownership.missing(current[1], annotations),
    }
    if not any(template.values()):
        return None
    before = LabelOwnership.of(metadata.annotations(workload)) or LabelOwnership(application, source, {})
    owned = LabelOwnership(
        application,
        source,
        label_ownership.changes(current[0], labels, before.labels),
        label_ownership.changes(current[1], annotations, before.annotations),
    )
    return {"metadata": {"annotations": {names.LABELLED_BY: owned.text}}, **_template(template)}


def _has_charm(workload: Workload) -> bool:
    spec = workload.spec.template.spec if workload.spec else None
    return any(each.name == names.CHARM_INIT_CONTAINER for each in (spec.initContainers if spec else None) or [])


def _template(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {"spec": {"template": {"metadata": dict(changes)}}}


def _template_labels(workload: Workload) -> Labels:
    return metadata.labels(workload.spec.template if workload.spec else None)


def _template_annotations(workload: Workload) -> Labels:
    return metadata.annotations(workload.spec.template if workload.spec else None)
