"""StatefulSets, Deployments and DaemonSets: patches of their pod templates, and which a pod belongs to. Pure."""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from lightkube.resources.apps_v1 import DaemonSet, Deployment, ReplicaSet, StatefulSet
from lightkube.resources.core_v1 import Pod

import marks
import metadata
import names
from cluster import Patch
from marks import ACTION, Mark

Workload = StatefulSet | Deployment
ROLLABLE: Mapping[str, type[StatefulSet | Deployment | DaemonSet]] = {
    "StatefulSet": StatefulSet,
    "Deployment": Deployment,
    "DaemonSet": DaemonSet,
}
"""What replaces its pods when its template changes."""

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
"""The annotation by which kubectl rollout restart does it."""

_IN_THE_MESH = {names.INJECTION_LABEL: names.ENABLED, names.ISTIO_INJECT: "true"}


@dataclasses.dataclass(frozen=True, order=True)
class Owner:
    """What makes a pod anew."""

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}"


def owner(thing: Pod | ReplicaSet) -> Owner | None:
    """What controls an object, one step up; None where nothing does."""
    references = metadata.of(thing).ownerReferences or []
    controllers = [reference for reference in references if reference.controller]
    if not controllers:
        return None
    return Owner(metadata.namespace(thing) or "", controllers[0].kind, controllers[0].name)


def restart(now: datetime.datetime) -> Patch:
    """Have all pods replaced, a few at a time as the workload's strategy says."""
    return _template({"annotations": {RESTARTED_AT: now.isoformat(timespec="seconds")}})


def keep_out_of_the_mesh(workload: Workload) -> Patch | None:
    """Have Istio leave a workload's pods alone; None where somebody has said what is to be done with them.

    Its pods are replaced, so this is done once.
    """
    if names.ISTIO_INJECT in _template_labels(workload):
        return None
    return _template({"labels": {names.ISTIO_INJECT: "false"}})


def put_into_the_mesh(workload: Workload, application: str) -> Patch | None:
    """Have a workload's pods injected and served by istio-aux; None where they are."""
    lacking = marks.missing(_template_labels(workload), _IN_THE_MESH)
    if not lacking:
        return None
    mark = Mark(application, ACTION, tuple(lacking))
    return {"metadata": {"annotations": {names.LABELLED_BY: mark.text}}, **_template({"labels": lacking})}


def take_out_of_the_mesh(workload: Workload) -> Patch | None:
    """Take away the labels that this charm put on a workload's pods; None where it put none there."""
    mark = Mark.of(metadata.annotations(workload))
    if not mark:
        return None
    unmarked = {"metadata": {"annotations": {names.LABELLED_BY: None}}}
    return {**unmarked, **_template({"labels": dict.fromkeys(mark.labels)})}


def _template(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {"spec": {"template": {"metadata": dict(changes)}}}


def _template_labels(workload: Workload) -> Mapping[str, str]:
    return metadata.labels(workload.spec.template if workload.spec else None)
