"""An application of this charm in a model: its units run events one after another, and share data as in Juju."""

import dataclasses
import datetime
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any, cast

import ops
import pytest
import yaml
from ops import testing

import webhook
from certs import self_signed
from charm import IstioAuxCharm

PROJECT: dict[str, Any] = yaml.safe_load((pathlib.Path(__file__).parents[2] / "charmcraft.yaml").read_text())
META = ("name", "containers", "resources", "peers", "requires", "provides")
MODEL = testing.Model(name="kubeflow", uuid="11111111-2222-4333-8444-555555555555", type="kubernetes")
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = START
        self.on_sleep: Callable[[], object] = lambda: None
        """Called while the charm sleeps."""

    def sleep(self, seconds: float) -> None:
        self.passes(seconds)
        self.on_sleep()

    def passes(self, seconds: float = 0, days: float = 0) -> None:
        self.now += datetime.timedelta(seconds=seconds, days=days)


class App:
    """The application. Unit numbers name its units."""

    def __init__(self, name: str = "istio-aux", model: testing.Model = MODEL) -> None:
        self.name = name
        self.model = model
        self.leader = 0
        self.planned: int | None = None
        """The planned units of goal-state; None for the number of units."""
        self.config: dict[str, Any] = {}
        self.data: dict[str, str] = {}
        self.secret: testing.Secret | None = None
        self.units: dict[int, testing.State] = {}
        self.unit_data: dict[int, dict[str, str]] = {}
        self.contexts: dict[int, testing.Context[IstioAuxCharm]] = {}

    def add(self, unit: int, *, up: bool = True) -> None:
        """Adds a unit on which no event has run yet."""
        self.units[unit] = testing.State(containers={_new_container(up=up)}, model=self.model)
        self.unit_data[unit] = {}
        # Without a charm_root: contexts of two processes would write the same files there.
        self.contexts[unit] = testing.Context(
            IstioAuxCharm,
            meta={key: PROJECT[key] for key in META},
            actions=PROJECT["actions"],
            config=PROJECT["config"],
            app_name=self.name,
            unit_id=unit,
        )

    def deploy(self, units: int = 1, config: dict[str, Any] | None = None) -> None:
        """Adds units and runs the events of their first minutes, the leader first."""
        self.config = config or self.config
        for unit in range(units):
            self.add(unit)
        for unit in list(self.units):
            self.start(unit)

    def start(self, unit: int) -> None:
        on = self.contexts[unit].on
        self.run(unit, on.install())
        self.run(unit, on.leader_elected() if unit == self.leader else on.config_changed())
        self.run(unit, on.config_changed())
        self.run(unit, on.start())
        self.run(unit, on.pebble_ready(self.container(unit)))

    def run(self, unit: int, event: Any, *, peers: bool = True) -> testing.State:
        """Runs an event on a unit, and keeps its changes. A callable makes the event from the state."""
        state = self._state(unit, peers=peers)
        out = self.contexts[unit].run(cast("Any", event(state) if callable(event) else event), state)
        return self._keep(unit, out)

    def _state(self, unit: int, *, peers: bool = True) -> testing.State:
        return dataclasses.replace(
            self.units[unit],
            leader=unit == self.leader,
            planned_units=len(self.units) if self.planned is None else self.planned,
            config=self.config,
            secrets=self._secrets(unit),
            relations=self._relations(unit, peers=peers),
        )

    def peers_changed(self, unit: int) -> testing.State:
        return self.run(unit, lambda state: self.contexts[unit].on.relation_changed(state.get_relations("peers")[0]))

    def secret_changed(self, unit: int) -> testing.State:
        """Runs secret-changed, which Juju sends only to units that may not write the secret."""
        on = self.contexts[unit].on
        return self.run(unit, lambda state: on.secret_changed(state.get_secret(label=self_signed.LABEL)))

    def rotate(self, unit: int) -> None:
        """Has the leader issue a new certificate, without waiting for it to be trusted."""
        context = self.contexts[unit]
        state = self._state(unit)
        with context(context.on.update_status(), state) as manager:
            manager.charm.reconcile(rotate=True)
            self._keep(unit, manager.run())

    def secret_expired(self, unit: int) -> testing.State:
        on = self.contexts[unit].on
        return self.run(unit, lambda state: on.secret_expired(state.get_secret(label=self_signed.LABEL), revision=1))

    def update(self, unit: int) -> testing.State:
        return self.run(unit, self.contexts[unit].on.update_status())

    def act(self, unit: int, action: str, **params: object) -> dict[str, Any]:
        """Runs an action. Raises ActionFailed if it fails."""
        context = self.contexts[unit]
        self.run(unit, context.on.action(action, params=params))
        return context.action_results or {}

    def failure(self, unit: int, action: str, **params: object) -> str:
        """Runs an action that fails, and returns its message."""
        with pytest.raises(testing.ActionFailed) as failed:
            self.act(unit, action, **params)
        return failed.value.message

    def remove_all(self) -> None:
        """Runs the last events of every unit, with none planned, the last unit first."""
        self.planned = 0
        for unit in sorted(self.units, reverse=True):
            self.remove(unit)

    def remove(self, unit: int) -> None:
        """Runs the last events of a unit."""
        on = self.contexts[unit].on
        self.run(unit, on.stop())
        self.run(unit, on.remove())
        del self.units[unit], self.unit_data[unit], self.contexts[unit]

    def relate(self, unit: int, relation: testing.Relation) -> None:
        others = {other for other in self.units[unit].relations if other.id != relation.id}
        self.units[unit] = dataclasses.replace(self.units[unit], relations=frozenset({*others, relation}))

    def relation(self, unit: int, endpoint: str) -> testing.RelationBase:
        return self.units[unit].get_relations(endpoint)[0]

    def drop_relation(self, unit: int, endpoint: str) -> None:
        kept = {relation for relation in self.units[unit].relations if relation.endpoint != endpoint}
        self.units[unit] = dataclasses.replace(self.units[unit], relations=frozenset(kept))

    def container(self, unit: int) -> testing.Container:
        return self.units[unit].get_container("webhook")

    def change_container(self, unit: int, **changes: object) -> None:
        changed = dataclasses.replace(self.container(unit), **changes)  # type: ignore[arg-type]
        self.units[unit] = dataclasses.replace(self.units[unit], containers=frozenset({changed}))

    def churn(self, unit: int) -> None:
        """Replaces the pod: its container is empty, and Pebble has no plan."""
        self.units[unit] = dataclasses.replace(self.units[unit], containers=frozenset({_new_container(up=True)}))

    def status(self, unit: int = 0) -> ops.StatusBase:
        return cast("ops.StatusBase", self.units[unit].unit_status)

    def root(self, unit: int) -> pathlib.Path:
        """Returns the directory of the container's files on this machine."""
        return pathlib.Path(self.container(unit).mounts["certificate"].source).parent

    def file(self, unit: int) -> pathlib.Path:
        return self.root(unit) / webhook.CERTIFICATE_FILE.strip("/")

    def served(self, unit: int) -> str | None:
        return self.file(unit).read_text() if self.file(unit).exists() else None

    def kept(self) -> self_signed.SelfSigned:
        assert self.secret
        assert self.secret.latest_content
        return self_signed.SelfSigned.of(self.secret.latest_content)

    def _secrets(self, unit: int) -> frozenset[testing.Secret]:
        own = {secret for secret in self.units[unit].secrets if secret.label != self_signed.LABEL}
        if not self.secret:
            return frozenset(own)
        owner = "app" if unit == self.leader else None
        return frozenset({*own, dataclasses.replace(self.secret, owner=owner)})

    def _relations(self, unit: int, *, peers: bool) -> frozenset[testing.RelationBase]:
        others = {each for each in self.units[unit].relations if each.endpoint != "peers"}
        if not peers:
            return frozenset(others)
        data = {number: self.unit_data[number] for number in self.units if number != unit}
        peer = testing.PeerRelation(
            "peers", id=99, peers_data=data, local_unit_data=self.unit_data[unit], local_app_data=self.data
        )
        return frozenset({*others, peer})

    def _keep(self, unit: int, out: testing.State) -> testing.State:
        self.units[unit] = out
        for relation in out.get_relations("peers"):
            self.unit_data[unit] = dict(relation.local_unit_data)
            if unit == self.leader:
                self.data = dict(relation.local_app_data)
        if unit == self.leader:
            found = [secret for secret in out.secrets if secret.label == self_signed.LABEL]
            self.secret = found[0] if found else None
        return out


_ROOTS = tempfile.TemporaryDirectory(prefix="istio-aux-charm-")
"""The files of all containers, which go with the process."""


def _new_container(*, up: bool) -> testing.Container:
    """Returns a container whose files last until it is replaced."""
    root = pathlib.Path(tempfile.mkdtemp(dir=_ROOTS.name))
    mounts: dict[str, testing.Mount] = {}
    for name, file in (("certificate", webhook.CERTIFICATE_FILE), ("cas", webhook.CA_BUNDLE)):
        location = str(pathlib.Path(file).parent)
        source = root / location.strip("/")
        source.mkdir(parents=True)
        mounts[name] = testing.Mount(location=location, source=source)
    return testing.Container("webhook", can_connect=up, mounts=mounts)
