"""The charm's actions. Each ends in results, or in one line that says what is wrong."""

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import ops
from lightkube.resources.apps_v1 import Deployment, ReplicaSet, StatefulSet
from lightkube.resources.core_v1 import Namespace, Pod

import metadata
import namespaces
import pods
import statuses
import workloads
from application import Application
from cluster import ALL_NAMESPACES, Cluster, ClusterError, Forbidden, Unavailable
from installation import Installation
from marks import CONFIG
from workloads import Owner, Workload

Results = dict[str, str | int]
P = TypeVar("P")


@dataclasses.dataclass(frozen=True)
class Where:
    """Parameters: a namespace, or all where that is empty."""

    namespace: str = ""


@dataclasses.dataclass(frozen=True)
class Roll(Where):
    """Parameters of `roll-missed-pods`."""

    dry_run: bool = True


@dataclasses.dataclass(frozen=True)
class Enable(Where):
    """Parameters of `enable-namespace`."""

    istio_injection: bool = False
    workloads: str = ""

    @property
    def chosen(self) -> list[str]:
        """Names of the workloads, where not all of the namespace is meant."""
        return [name.strip() for name in self.workloads.split(",") if name.strip()]


class Failed(Exception):
    """The action cannot be done. The message says what to do."""


class Actions(ops.Object):
    """What operators may ask for. None of it is done by itself."""

    def __init__(
        self, charm: ops.CharmBase, application: Application, cluster: Cluster, rotate: Callable[[], bool]
    ) -> None:
        super().__init__(charm, "actions")
        self._charm = charm
        self._application = application
        self._cluster = cluster
        self._installation = Installation(application, cluster)
        self._rotate = rotate
        for action, handler in (
            ("list-missed-pods", self._on_list_missed_pods),
            ("roll-missed-pods", self._on_roll_missed_pods),
            ("enable-namespace", self._on_enable_namespace),
            ("disable-namespace", self._on_disable_namespace),
            ("rotate-certificates", self._on_rotate_certificates),
        ):
            self.framework.observe(charm.on[action].action, handler)

    def _on_list_missed_pods(self, event: ops.ActionEvent) -> None:
        self._answer(event, Where, self.list_missed_pods)

    def _on_roll_missed_pods(self, event: ops.ActionEvent) -> None:
        self._answer(event, Roll, self.roll_missed_pods)

    def _on_enable_namespace(self, event: ops.ActionEvent) -> None:
        self._answer(event, Enable, self.enable_namespace)

    def _on_disable_namespace(self, event: ops.ActionEvent) -> None:
        self._answer(event, Where, self.disable_namespace)

    def _on_rotate_certificates(self, event: ops.ActionEvent) -> None:
        self._answer(event, Where, self.rotate_certificates)

    def _answer(self, event: ops.ActionEvent, params: type[P], act: Callable[[P], Results]) -> None:
        try:
            event.set_results(act(event.load_params(params)))
        except Failed as failed:
            event.fail(str(failed))
        except Forbidden:
            event.fail(statuses.not_trusted(self._application.name).message)
        except Unavailable as error:
            event.fail(f"the Kubernetes API does not answer; try again: {error}")
        except ClusterError as error:
            event.fail(f"the Kubernetes API refuses this: {error}")

    def list_missed_pods(self, params: Where) -> Results:
        """Pods that run without the shim or the sidecar that they should have got."""
        missed = list(self._missed(params))
        lines = [f"{_itself(pod)} {kind} {owner or '-'}" for pod, kind, owner in missed]
        return {"count": len(lines), "pods": "\n".join(sorted(lines))}

    def roll_missed_pods(self, params: Roll) -> Results:
        """Have the owners of such pods replace them; only say which, unless asked for more."""
        makers = sorted({owner or _itself(pod) for pod, _, owner in self._missed(params)})
        rollable = [maker for maker in makers if maker.kind in workloads.ROLLABLE]
        others = [maker for maker in makers if maker.kind not in workloads.ROLLABLE]
        if not params.dry_run:
            self._restart(rollable)
        return {
            "would-roll" if params.dry_run else "rolled": "\n".join(map(str, rollable)),
            "to-delete-by-hand": "\n".join(map(str, others)),
        }

    def enable_namespace(self, params: Enable) -> Results:
        """Opt a namespace in, or only some workloads of it."""
        namespace = self._namespace(params)
        if params.chosen and params.istio_injection:
            raise Failed("workloads and istio-injection exclude each other: the latter is for all of the namespace")
        if params.chosen:
            return self._enable_workloads(namespace, params.chosen)
        name = metadata.name(namespace)
        if name == self._application.model:
            self._installation.protect_model()
        patch = namespaces.enable(namespace, self._application.title, istio_injection=params.istio_injection)
        if patch:
            self._cluster.patch(Namespace, name, patch)
        return {"namespace": name, "changed": "yes" if patch else "no, it was enabled"}

    def disable_namespace(self, params: Where) -> Results:
        """Opt a namespace out, and the workloads of it that `enable-namespace` put in."""
        namespace = self._namespace(params)
        name, mark = metadata.name(namespace), namespaces.mark_of(namespace)
        if mark and (mark.application, mark.through) == (self._application.title, CONFIG):
            raise Failed(f"the option namespaces lists {name}: take it out there")
        patch = namespaces.disable(namespace)
        if patch:
            self._cluster.patch(Namespace, name, patch)
        taken_out: list[str] = []
        for workload in self._workloads(name):
            template = workloads.take_out_of_the_mesh(workload)
            if template:
                self._cluster.patch(type(workload), metadata.name(workload), template, name)
                taken_out.append(metadata.name(workload))
        return {
            "namespace": name,
            "changed": "yes" if patch else "no, it was not enabled",
            "workloads": ", ".join(taken_out),
        }

    def rotate_certificates(self, _params: Where) -> Results:
        """Make a new certificate, have the API server trust it, then serve it."""
        if not self._charm.unit.is_leader():
            raise Failed(f"only the leader can; run it on {self._application.name}/leader")
        if self._charm.model.get_relation("certificates"):
            raise Failed("the relation certificates issues the certificate: have its provider renew it")
        if not self._rotate():
            raise Failed(f"made, but not served yet: {self._charm.unit.status.message or 'see juju debug-log'}")
        return {"rotated": "yes; other units follow as they hear of it"}

    def _missed(self, params: Where) -> Iterator[tuple[Pod, str, Owner | None]]:
        chosen = [self._namespace(params)] if params.namespace else self._cluster.list(Namespace)
        by_name = {metadata.name(namespace): namespace for namespace in chosen}
        within = params.namespace or ALL_NAMESPACES
        for pod in self._cluster.list(Pod, within):
            namespace = by_name.get(metadata.namespace(pod) or "")
            kind = pods.missed(pod, namespace, self._application.name) if namespace else None
            if kind:
                yield pod, kind, self._owner(pod)

    def _owner(self, pod: Pod) -> Owner | None:
        """What makes the pod anew: the Deployment where a ReplicaSet does."""
        owner = workloads.owner(pod)
        if not owner or owner.kind != "ReplicaSet":
            return owner
        replica_set = self._cluster.get(ReplicaSet, owner.name, owner.namespace)
        return (workloads.owner(replica_set) if replica_set else None) or owner

    def _restart(self, owners: Iterable[Owner]) -> None:
        patch = workloads.restart(datetime.datetime.now(datetime.UTC))
        for owner in owners:
            self._cluster.patch(workloads.ROLLABLE[owner.kind], owner.name, patch, owner.namespace)

    def _namespace(self, params: Where) -> Namespace:
        namespace = self._cluster.get(Namespace, params.namespace) if params.namespace else None
        if not namespace:
            raise Failed(f"there is no namespace {params.namespace}")
        return namespace

    def _enable_workloads(self, namespace: Namespace, chosen: list[str]) -> Results:
        name = metadata.name(namespace)
        there = {metadata.name(workload): workload for workload in self._workloads(name)}
        absent = [each for each in chosen if each not in there]
        if absent:
            raise Failed(f"namespace {name} has no StatefulSet or Deployment {', '.join(absent)}")
        changed: list[str] = []
        for each in chosen:
            patch = workloads.put_into_the_mesh(there[each], self._application.title)
            if patch:
                self._cluster.patch(type(there[each]), each, patch, name)
                changed.append(each)
        return {"namespace": name, "changed": ", ".join(changed) or "no, they were enabled"}

    def _workloads(self, namespace: str) -> list[Workload]:
        """A namespace's Deployments and StatefulSets; of two with one name the StatefulSet, which Juju makes."""
        return [*self._cluster.list(Deployment, namespace), *self._cluster.list(StatefulSet, namespace)]


def _itself(pod: Pod) -> Owner:
    return Owner(metadata.namespace(pod) or "", "Pod", metadata.name(pod))
