"""Finds what replaces a pod: pure."""

import dataclasses

from lightkube.resources.apps_v1 import ReplicaSet
from lightkube.resources.core_v1 import Pod

from cluster import metadata

REPLACED = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController")
"""Kinds that replace a pod that is evicted. A Job counts it as a failure, and a bare pod is gone."""


@dataclasses.dataclass(frozen=True, order=True)
class Owner:
    """The controller of a pod, or the pod itself if it has none."""

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
