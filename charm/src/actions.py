"""The charm's actions. Each returns results, or fails with one line that says what to do."""

import collections
import dataclasses
import datetime
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import ops
from lightkube.resources.core_v1 import Namespace

import names
import statuses
from application import Application
from cluster import metadata
from cluster.client import Cluster, ClusterError, Forbidden, Unavailable
from cluster.resources import ClusterResources
from mesh import namespaces
from mesh.census import Census, Missed
from settings import Settings

Results = dict[str, str | int]
P = TypeVar("P")
LINES = 200
"""The pods that a result lists: Juju takes results as arguments, of 128 KiB at most."""


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


class ActionFailed(Exception):
    """Fails the action. The message says what to do."""


class Charm(Protocol):
    """The part of the charm that actions use."""

    @property
    def settings(self) -> Settings | None:
        """Returns the options; None if they are invalid and there are no previous ones."""

    def opt_in(self, namespace: str, labels: namespaces.Labels) -> str | None:
        """Remembers a namespace that an action opted in, and labels it. Returns the reason if it is not labelled."""

    def opt_out(self, namespace: str) -> bool | None:
        """Forgets such a namespace, and restores its labels. Returns true if it was one."""


class Actions(ops.Object):
    """The actions. The charm runs none of them by itself."""

    def __init__(self, charm: ops.CharmBase, application: Application, cluster: Cluster, reconciler: Charm) -> None:
        super().__init__(charm, "actions")
        self._charm = charm
        self._reconciler = reconciler
        self._application = application
        self._cluster = cluster
        self._resources = ClusterResources(application, cluster)
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
        missed = self._missed(params)
        counts = collections.Counter(each.kind for each in missed)
        return {"count": len(missed), **dict(sorted(counts.items())), "pods": _lines(map(str, missed))}

    def restart_uninjected_pods(self, params: Restart) -> Results:
        """Evicts such pods, if something replaces them; in a dry run it only lists them."""
        missed = self._missed(params)
        replaced = [each for each in missed if each.is_replaced]
        blocked: list[Missed] = []
        if not params.dry_run:
            blocked = [each for each in replaced if not self._cluster.evict(each.name, each.namespace)]
        return {
            "would-evict" if params.dry_run else "evicted": _lines(
                str(each) for each in replaced if each not in blocked
            ),
            "not-evicted-now": _lines(map(str, blocked)),
            "to-delete-by-hand": _lines(str(each) for each in missed if not each.is_replaced),
        }

    def enable_namespace(self, params: Enable) -> Results:
        """Opts a namespace in."""
        self._reject_if_not_leader()
        namespace = self._namespace(params)
        name = metadata.name(namespace)
        if params.istio_injection and namespaces.is_ambient(namespace):
            raise ActionFailed(f"namespace {name} is in the ambient mesh: a sidecar would take its pods out of it")
        in_mesh = {**namespaces.OPT_IN, **namespaces.IN_MESH}
        if problem := self._reconciler.opt_in(name, in_mesh if params.istio_injection else namespaces.OPT_IN):
            raise ActionFailed(problem)
        return {"namespace": name, "enabled": "yes"}

    def disable_namespace(self, params: NamespaceParams) -> Results:
        """Opts a namespace out."""
        self._reject_if_not_leader()
        name = params.namespace
        if namespace := self._cluster.get(Namespace, name) if name else None:
            self._reject_if_option_enables(namespace)
        was_enabled = self._reconciler.opt_out(name)
        if was_enabled and not namespace:
            return {"namespace": name, "changed": "yes; it does not exist any more"}
        patch = namespaces.opt_out(self._namespace(params))
        if patch:
            self._cluster.patch(Namespace, name, patch)
        return {"namespace": name, "changed": "yes" if was_enabled or patch else "no, it was not enabled"}

    def rotate_certificates(self, _params: NamespaceParams) -> Results:
        """Has the webhook issue a new certificate, have the API server trust it, then serve it."""
        if self._charm.model.get_relation("certificates"):
            raise ActionFailed("the certificate is from the relation certificates: renew it at its provider")
        self._resources.renew_certificate(datetime.datetime.now(datetime.UTC))
        return {
            "rotated": "requested; served within two minutes, and the old CA is not trusted any more five minutes later"
        }

    def _reject_if_not_leader(self) -> None:
        if not self._charm.unit.is_leader():
            raise ActionFailed(f"only the leader can do this; run it on {self._application.name}/leader")

    def _reject_if_option_enables(self, namespace: Namespace) -> None:
        """Raises ActionFailed if an option would opt the namespace in again at the next event."""
        settings, name = self._reconciler.settings, metadata.name(namespace)
        if settings and name in settings.namespaces:
            raise ActionFailed(f"the option namespaces lists {name}: remove it there")
        selector = settings.namespace_selector if settings else None
        if selector and selector.matches(metadata.labels(namespace)):
            label = f"{names.INJECTION_LABEL}={names.DISABLED}"
            raise ActionFailed(f"the option namespace-selector selects {name}: label it {label}")

    def _missed(self, params: NamespaceParams) -> list[Missed]:
        if params.namespace:
            self._namespace(params)
        settings = self._reconciler.settings or Settings()
        return Census(self._cluster, self._application, settings).missed(params.namespace)

    def _namespace(self, params: NamespaceParams) -> Namespace:
        namespace = self._cluster.get(Namespace, params.namespace) if params.namespace else None
        if not namespace:
            raise ActionFailed(f"namespace not found: {params.namespace}")
        return namespace


def _lines(lines: Iterable[str]) -> str:
    """Joins the first lines, and says how many there are more."""
    all_lines = sorted(lines)
    more = [f"and {len(all_lines) - LINES} more; narrow it with namespace="] if len(all_lines) > LINES else []
    return "\n".join([*all_lines[:LINES], *more])
