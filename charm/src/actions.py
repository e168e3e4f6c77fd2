"""The charm's actions. Each returns results, or fails with one line that says what to do."""

import dataclasses
import datetime
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import ops
from lightkube.resources.apps_v1 import Deployment, ReplicaSet, StatefulSet
from lightkube.resources.core_v1 import Namespace, Pod

import names
import statuses
from application import Application
from cluster import metadata
from cluster.client import ALL_NAMESPACES, Cluster, ClusterError, Forbidden, Unavailable
from cluster.resources import ClusterResources
from mesh import namespaces, pods, workloads
from mesh.label_ownership import ACTION, CONFIG
from mesh.workloads import Owner, Workload
from settings import Settings

Results = dict[str, str | int]
P = TypeVar("P")


@dataclasses.dataclass(frozen=True)
class NamespaceParams:
    """Parameters: a namespace; all of them if it is empty."""

    namespace: str = ""


@dataclasses.dataclass(frozen=True)
class Restart(NamespaceParams):
    """Parameters of `restart-uninjected-pods`."""

    dry_run: bool = True


@dataclasses.dataclass(frozen=True)
class Enable(NamespaceParams):
    """Parameters of `enable-namespace`."""

    istio_injection: bool = False
    workloads: str = ""

    @property
    def chosen(self) -> list[str]:
        """Returns the names of the workloads; none if the whole namespace is meant."""
        return [name.strip() for name in self.workloads.split(",") if name.strip()]


class ActionFailed(Exception):
    """Fails the action. The message says what to do."""


class Charm(Protocol):
    """The part of the charm that actions use."""

    @property
    def settings(self) -> Settings | None:
        """Returns the options; None if they are invalid and there are no previous ones."""

    def rotate(self) -> str | None:
        """Rotates the certificate. Returns the reason if it is not served yet."""


class Actions(ops.Object):
    """The actions. The charm runs none of them by itself."""

    def __init__(self, charm: ops.CharmBase, application: Application, cluster: Cluster, reconciler: Charm) -> None:
        super().__init__(charm, "actions")
        self._charm = charm
        self._reconciler = reconciler
        self._application = application
        self._cluster = cluster
        self._resources = ClusterResources(application, cluster, charm.unit.name)
        for action, handler in (
            ("list-uninjected-pods", self._on_list_uninjected_pods),
            ("restart-uninjected-pods", self._on_restart_uninjected_pods),
            ("enable-namespace", self._on_enable_namespace),
            ("disable-namespace", self._on_disable_namespace),
            ("rotate-certificates", self._on_rotate_certificates),
        ):
            self.framework.observe(charm.on[action].action, handler)

    def _on_list_uninjected_pods(self, event: ops.ActionEvent) -> None:
        self._answer(event, NamespaceParams, self.list_uninjected_pods)

    def _on_restart_uninjected_pods(self, event: ops.ActionEvent) -> None:
        self._answer(event, Restart, self.restart_uninjected_pods)

    def _on_enable_namespace(self, event: ops.ActionEvent) -> None:
        self._answer(event, Enable, self.enable_namespace)

    def _on_disable_namespace(self, event: ops.ActionEvent) -> None:
        self._answer(event, NamespaceParams, self.disable_namespace)

    def _on_rotate_certificates(self, event: ops.ActionEvent) -> None:
        self._answer(event, NamespaceParams, self.rotate_certificates)

    def _answer(self, event: ops.ActionEvent, params: type[P], act: Callable[[P], Results]) -> None:
        try:
            event.set_results(act(event.load_params(params)))
        except ActionFailed as failed:
            event.fail(str(failed))
        except Forbidden:
            event.fail(statuses.missing_juju_trust(self._application.name).message)
        except Unavailable as error:
            event.fail(f"the Kubernetes API does not answer; try again: {error}")
        except ClusterError as error:
            event.fail(f"the Kubernetes API rejects this: {error}")

    def list_uninjected_pods(self, params: NamespaceParams) -> Results:
        """Lists running pods without the shim, the sidecar or the startup hold that they should have."""
        missed = list(self._missed(params))
        lines = [f"{_pod(pod)} {kind} {owner or '-'}" for pod, kind, owner in missed]
        return {"count": len(lines), "pods": "\n".join(sorted(lines))}

    def restart_uninjected_pods(self, params: Restart) -> Results:
        """Restarts the owners of such pods; in a dry run it only lists them."""
        owners = sorted({owner or _pod(pod) for pod, _, owner in self._missed(params)})
        restartable = [owner for owner in owners if owner.kind in workloads.RESTARTABLE]
        others = [owner for owner in owners if owner.kind not in workloads.RESTARTABLE]
        if not params.dry_run:
            self._restart(restartable)
        return {
            "would-restart" if params.dry_run else "restarted": "\n".join(map(str, restartable)),
            "to-delete-by-hand": "\n".join(map(str, others)),
        }

    def enable_namespace(self, params: Enable) -> Results:
        """Opts a namespace in, or only some of its workloads."""
        namespace = self._namespace(params)
        if params.chosen and params.istio_injection:
            raise ActionFailed(
                "workloads and istio-injection exclude each other: istio-injection is for the whole namespace"
            )
        if params.chosen:
            return self._enable_workloads(namespace, params.chosen)
        name = metadata.name(namespace)
        self._resources.protect({name})
        patch = namespaces.enable(namespace, self._application.title, istio_injection=params.istio_injection)
        if patch:
            self._cluster.patch(Namespace, name, patch)
        return {"namespace": name, "changed": "yes" if patch else "no, it was enabled"}

    def disable_namespace(self, params: NamespaceParams) -> Results:
        """Opts a namespace out, with its workloads that `enable-namespace` opted in."""
        namespace = self._namespace(params)
        name = metadata.name(namespace)
        self._reject_if_option_enables(namespace)
        patch = namespaces.disable(namespace)
        if patch:
            self._cluster.patch(Namespace, name, patch)
        restored: list[str] = []
        for workload in self._workloads(name):
            template = workloads.restore(workload, ACTION)
            if template:
                self._cluster.patch(type(workload), metadata.name(workload), template, name)
                restored.append(metadata.name(workload))
        return {
            "namespace": name,
            "changed": "yes" if patch else "no, it was not enabled",
            "workloads": ", ".join(restored),
        }

    def rotate_certificates(self, _params: NamespaceParams) -> Results:
        """Issues a new certificate, has the API server trust it, then serves it."""
        if not self._charm.unit.is_leader():
            raise ActionFailed(f"only the leader can rotate; run it on {self._application.name}/leader")
        if self._charm.model.get_relation("certificates"):
            raise ActionFailed("the certificate is from the relation certificates: renew it at its provider")
        if problem := self._reconciler.rotate():
            raise ActionFailed(f"issued, but not served yet: {problem}")
        return {"rotated": "yes; other units follow at their next event"}

    def _reject_if_option_enables(self, namespace: Namespace) -> None:
        """Raises ActionFailed if an option would opt the namespace in again at the next event."""
        settings, name = self._reconciler.settings, metadata.name(namespace)
        owner = namespaces.ownership_of(namespace)
        if settings and name in settings.namespaces:
            raise ActionFailed(f"the option namespaces lists {name}: remove it there")
        if owner and owner.source == CONFIG and owner.application != self._application.title:
            raise ActionFailed(f"the option namespaces of {owner.application} lists {name}: remove it there")
        selector = settings.namespace_selector if settings else None
        if selector and selector.matches(metadata.labels(namespace)):
            label = f"{names.INJECTION_LABEL}={names.DISABLED}"
            raise ActionFailed(f"the option namespace-selector selects {name}: label it {label}")

    def _missed(self, params: NamespaceParams) -> Iterator[tuple[Pod, str, Owner | None]]:
        chosen = [self._namespace(params)] if params.namespace else self._cluster.list(Namespace)
        settings = self._reconciler.settings
        selector = settings.namespace_selector if settings else None
        by_name = {metadata.name(namespace): namespace for namespace in chosen}
        within = params.namespace or ALL_NAMESPACES
        for pod in self._cluster.list(Pod, within):
            namespace = by_name.get(metadata.namespace(pod) or "")
            kind = pods.missed(pod, namespace, self._application.name, selector) if namespace else None
            if kind:
                yield pod, kind, self._owner(pod)

    def _owner(self, pod: Pod) -> Owner | None:
        """Returns what recreates the pod: the Deployment if a ReplicaSet owns it."""
        owner = workloads.owner(pod)
        if not owner or owner.kind != "ReplicaSet":
            return owner
        replica_set = self._cluster.get(ReplicaSet, owner.name, owner.namespace)
        return (workloads.owner(replica_set) if replica_set else None) or owner

    def _restart(self, owners: Iterable[Owner]) -> None:
        patch = workloads.restart(datetime.datetime.now(datetime.UTC))
        for owner in owners:
            self._cluster.patch(workloads.RESTARTABLE[owner.kind], owner.name, patch, owner.namespace)

    def _namespace(self, params: NamespaceParams) -> Namespace:
        namespace = self._cluster.get(Namespace, params.namespace) if params.namespace else None
        if not namespace:
            raise ActionFailed(f"namespace not found: {params.namespace}")
        return namespace

    def _enable_workloads(self, namespace: Namespace, chosen: list[str]) -> Results:
        name = metadata.name(namespace)
        protected = {names.MODEL_OPERATOR}
        if name == self._application.model:
            protected.add(self._application.name)
        if excluded := sorted(protected & set(chosen)):
            raise ActionFailed(f"{', '.join(excluded)} cannot be in the mesh: the API server calls its pods directly")
        there = {metadata.name(workload): workload for workload in self._workloads(name)}
        absent = [each for each in chosen if each not in there]
        if absent:
            raise ActionFailed(f"namespace {name} has no StatefulSet or Deployment {', '.join(absent)}")
        changed: list[str] = []
        for each in chosen:
            patch = workloads.add_to_mesh(there[each], self._application.title, controller_ports())
            if patch:
                self._cluster.patch(type(there[each]), each, patch, name)
                changed.append(each)
        return {"namespace": name, "changed": ", ".join(changed) or "no, they were enabled"}

    def _workloads(self, namespace: str) -> list[Workload]:
        """Lists Deployments, then StatefulSets, which Juju creates: of two with one name, callers take the later."""
        return [*self._cluster.list(Deployment, namespace), *self._cluster.list(StatefulSet, namespace)]


def _pod(pod: Pod) -> Owner:
    return Owner(metadata.namespace(pod) or "", "Pod", metadata.name(pod))


def controller_ports() -> list[str]:
    """Returns the ports of the Juju controller's API, from the environment of the hook."""
    addresses = os.environ.get("JUJU_API_ADDRESSES", "").split()
    return sorted({address.rsplit(":", 1)[1] for address in addresses if ":" in address}) or [names.CONTROLLER_PORT]
