"""Finds the running pods that miss what they should have of the mesh and of istio-aux."""

import dataclasses

from lightkube.models.meta_v1 import OwnerReference
from lightkube.resources.apps_v1 import ReplicaSet
from lightkube.resources.core_v1 import Namespace, Pod

from application import Application
from cluster import metadata
from cluster.client import ALL_NAMESPACES, Cluster
from mesh import pods
from settings import Settings

_REPLACED = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController")
"""Kinds that replace a pod that is evicted. A Job counts it as a failure, and a bare pod is gone."""


@dataclasses.dataclass(frozen=True)
class Missed:
    """A pod, what it misses, and what replaces it."""

    namespace: str
    name: str
    kind: str
    owner: OwnerReference | None

    @property
    def is_replaced(self) -> bool:
        """Returns true if a pod takes its place once it is evicted."""
        return self.owner is not None and self.owner.kind in _REPLACED

    def __str__(self) -> str:
        owner = f"{self.namespace}/{self.owner.kind}/{self.owner.name}" if self.owner else "-"
        return f"{self.namespace}/Pod/{self.name} {self.kind} {owner}"


def missed(
    cluster: Cluster, application: Application, settings: Settings, namespace: str = "", *, with_owners: bool = True
) -> list[Missed]:
    """Returns the pods of a namespace, or of all, that miss something. Owners may cost a request for each."""
    by_name = {metadata.name(each): each for each in cluster.list(Namespace)}
    found: list[Missed] = []
    for pod in cluster.list(Pod, namespace or ALL_NAMESPACES):
        within = metadata.namespace(pod) or ""
        kind = pods.missed(pod, by_name[within], application, settings) if within in by_name else None
        if kind:
            found.append(Missed(within, metadata.name(pod), kind, _owner(cluster, pod) if with_owners else None))
    return found


def _owner(cluster: Cluster, pod: Pod) -> OwnerReference | None:
    """Returns what replaces the pod: the Deployment if a ReplicaSet does. None if it has no controller."""
    owner = _controller(pod)
    if not owner or owner.kind != "ReplicaSet":
        return owner
    replica_set = cluster.get(ReplicaSet, owner.name, metadata.namespace(pod))
    return _controller(replica_set) or owner


def _controller(thing: Pod | ReplicaSet | None) -> OwnerReference | None:
    references = metadata.of(thing).ownerReferences or []
    return next((each for each in references if each.controller), None)
