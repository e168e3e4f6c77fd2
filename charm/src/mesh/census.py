"""Finds the running pods that miss what they should have of the mesh and of istio-aux."""

import dataclasses

from lightkube.resources.apps_v1 import ReplicaSet
from lightkube.resources.core_v1 import Namespace, Pod

from application import Application
from cluster import metadata
from cluster.client import ALL_NAMESPACES, Cluster
from mesh import owners, pods
from mesh.owners import Owner
from settings import Settings


@dataclasses.dataclass(frozen=True)
class Missed:
    """A pod, what it misses, and what replaces it."""

    namespace: str
    name: str
    kind: str
    owner: Owner | None

    @property
    def is_replaced(self) -> bool:
        """Returns true if a pod takes its place once it is evicted."""
        return self.owner is not None and self.owner.kind in owners.REPLACED

    def __str__(self) -> str:
        return f"{self.namespace}/Pod/{self.name} {self.kind} {self.owner or '-'}"


class Census:
    """Counts pods, with the rights of the application's account."""

    def __init__(self, cluster: Cluster, application: Application, settings: Settings) -> None:
        self._cluster = cluster
        self._application = application
        self._settings = settings

    def missed(self, namespace: str = "") -> list[Missed]:
        """Returns the pods of a namespace, or of all, that miss something."""
        by_name = {metadata.name(each): each for each in self._cluster.list(Namespace)}
        found: list[Missed] = []
        for pod in self._cluster.pages(Pod, namespace or ALL_NAMESPACES):
            within = by_name.get(metadata.namespace(pod) or "")
            kind = pods.missed(pod, within, self._application, self._settings) if within else None
            if kind:
                found.append(Missed(metadata.namespace(pod) or "", metadata.name(pod), kind, self._owner(pod)))
        return found

    def _owner(self, pod: Pod) -> Owner | None:
        """Returns what replaces the pod: the Deployment if a ReplicaSet does."""
        owner = owners.owner(pod)
        if not owner or owner.kind != "ReplicaSet":
            return owner
        replica_set = self._cluster.get(ReplicaSet, owner.name, owner.namespace)
        return (owners.owner(replica_set) if replica_set else None) or owner
