"""The charm's actions. Each returns results, or fails with one line that says what to do."""

import collections
import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import ops
from lightkube.resources.core_v1 import Namespace

import names
import statuses
from cluster import metadata
from cluster.client import ClusterError, Forbidden, Rejected, Unavailable
from cluster.resources import Conflict
from mesh import namespaces
from mesh.census import Missed, missed

if TYPE_CHECKING:
    from charm import IstioAuxCharm

Results = dict[str, str | int]
LINES, WIDTH = 200, 640
"""The pods that a result lists, and the characters for each: Juju takes results as arguments, of 128 KiB at most."""


@dataclasses.dataclass(frozen=True)
class Params:
    """The parameters of all actions, with the defaults of charmcraft.yaml. Juju rejects those that an action lacks."""

    namespace: str = ""
    dry_run: bool = True
    istio_injection: bool = False


class ActionFailed(Exception):
    """Fails the action. The message says what to do."""


def _answers(act: "Callable[[Actions, Params], Results]") -> "Callable[[Actions, ops.ActionEvent], None]":
    """Makes an observer of an action: sets its results, or fails with the message of what it raises."""

    @functools.wraps(act)
    def observe(actions: "Actions", event: ops.ActionEvent) -> None:
        try:
            event.set_results(act(actions, event.load_params(Params)))
        except (ActionFailed, Conflict) as failed:
            event.fail(str(failed))
        except Forbidden:
            event.fail(statuses.missing_juju_trust(actions.charm.app.name).message)
        except Unavailable as error:
            event.fail(f"the Kubernetes API does not answer; try again: {error}")
        except ClusterError as error:
            event.fail(f"the Kubernetes API rejects this: {error}")

    return observe


class Actions(ops.Object):
    """The actions. The charm runs none of them by itself."""

    def __init__(self, charm: "IstioAuxCharm") -> None:
        super().__init__(charm, "actions")
        self.charm = charm
        for action, handler in (
            ("list-uninjected-pods", self.list_uninjected_pods),
            ("restart-uninjected-pods", self.restart_uninjected_pods),
            ("enable-namespace", self.enable_namespace),
            ("disable-namespace", self.disable_namespace),
            ("rotate-certificates", self.rotate_certificates),
        ):
            self.framework.observe(charm.on[action].action, handler)

    @_answers
    def list_uninjected_pods(self, params: Params) -> Results:
        """Lists running pods without the shim, the sidecar or the startup hold that they should have."""
        found = self._missed(params)
        counts = collections.Counter(each.kind for each in found)
        return {"count": len(found), **dict(sorted(counts.items())), "pods": _lines(map(str, found))}

    @_answers
    def restart_uninjected_pods(self, params: Params) -> Results:
        """Evicts such pods, if something replaces them; in a dry run it only lists them."""
        done = "would-evict" if params.dry_run else "evicted"
        pods: dict[str, list[str]] = {done: [], "not-evicted-now": [], "failed": [], "to-delete-by-hand": []}
        for each in self._missed(params):
            if not each.is_replaced:
                pods["to-delete-by-hand"].append(str(each))
                continue
            try:
                is_done = params.dry_run or self.charm.cluster.evict(each.name, each.namespace)
                pods[done if is_done else "not-evicted-now"].append(str(each))
            except (Unavailable, Rejected) as error:
                pods["failed"].append(f"{each}: {error}")
        return {outcome: _lines(lines) for outcome, lines in pods.items()}

    @_answers
    def enable_namespace(self, params: Params) -> Results:
        """Opts a namespace in."""
        self._reject_if_not_in_charge()
        namespace = self._namespace(params)
        name = params.namespace
        if name == names.NEVER_INJECTED:
            raise ActionFailed(f"{name} cannot be opted in")
        if not self.charm.settings.has_shim_image:
            raise ActionFailed(self.charm.no_shim_image.message)
        if not self.charm.resources.offers_shim():
            raise ActionFailed("not every replica of the webhook has the shim's image yet; see juju status")
        if params.istio_injection and namespaces.is_ambient(namespace):
            raise ActionFailed(f"namespace {name} is in the ambient mesh: a sidecar would take its pods out of it")
        if params.istio_injection and names.ISTIO_REVISION_LABEL in metadata.labels(namespace):
            raise ActionFailed(f"namespace {name} has sidecars by its label istio.io/rev: leave out istio-injection")
        self.charm.opt_in(namespace, namespaces.IN_MESH if params.istio_injection else namespaces.OPT_IN)
        return {"namespace": name, "enabled": "yes"}

    @_answers
    def disable_namespace(self, params: Params) -> Results:
        """Opts a namespace out."""
        self._reject_if_not_in_charge()
        name = params.namespace
        if name in self.charm.settings.namespaces:
            raise ActionFailed(f"the option namespaces lists {name}: remove it there")
        there = self.charm.cluster.get(Namespace, name) if name else None
        was_enabled = self.charm.opt_out(name, there)
        if was_enabled and not there:
            return {"namespace": name, "changed": "yes; it does not exist any more"}
        namespace = self._namespace(params)
        self._reject_if_selected(namespace)
        patch = namespaces.opt_out(namespace)
        if patch:
            self.charm.cluster.patch(Namespace, name, patch)
        return {"namespace": name, "changed": "yes" if was_enabled or patch else "no, it was not enabled"}

    @_answers
    def rotate_certificates(self, _params: Params) -> Results:
        """Has the webhook issue a new certificate, have the API server trust it, then serve it."""
        if self.charm.model.get_relation("certificates"):
            raise ActionFailed("the certificate is from the relation certificates: renew it at its provider")
        self.charm.resources.reject_other_installation(self.charm.settings)
        if not self.charm.resources.renew_certificate(datetime.datetime.now(datetime.UTC)):
            raise ActionFailed("the webhook is not installed yet; juju status says why")
        return {"rotated": "requested; served within two minutes, and the old CA is trusted for five more minutes"}

    def _reject_if_not_in_charge(self) -> None:
        """Raises ActionFailed on a unit that does not lead, and Conflict beside another installation."""
        if not self.charm.unit.is_leader():
            raise ActionFailed(f"only the leader can do this; run it on {self.charm.app.name}/leader")
        self.charm.resources.reject_other_installation(self.charm.settings)

    def _reject_if_selected(self, namespace: Namespace) -> None:
        """Raises ActionFailed if the option `namespace-selector` opts the namespace in."""
        selector, labels = self.charm.settings.selector, metadata.labels(namespace)
        if selector and selector.matches(labels) and labels.get(names.INJECTION_LABEL) != names.DISABLED:
            label = f"{names.INJECTION_LABEL}={names.DISABLED}"
            raise ActionFailed(f"the option namespace-selector selects {metadata.name(namespace)}: label it {label}")

    def _missed(self, params: Params) -> list[Missed]:
        if params.namespace:
            self._namespace(params)
        return missed(self.charm.cluster, self.charm.application, self.charm.settings, params.namespace)

    def _namespace(self, params: Params) -> Namespace:
        namespace = self.charm.cluster.get(Namespace, params.namespace) if params.namespace else None
        if not namespace:
            raise ActionFailed(f"namespace not found: {params.namespace}")
        return namespace


def _lines(lines: Iterable[str]) -> str:
    """Joins the first lines, and says how many there are more."""
    all_lines = sorted(" ".join(line.split())[:WIDTH] for line in lines)
    more = [f"and {len(all_lines) - LINES} more; narrow it with namespace="] if len(all_lines) > LINES else []
    return "\n".join([*all_lines[:LINES], *more])
