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

from charm import IstioAuxCharm

PROJECT: dict[str, Any] = yaml.safe_load((pathlib.Path(__file__).parents[2] / "charmcraft.yaml").read_text())
META = ("name", "resources", "peers", "requires", "provides")
MODEL = testing.Model(name="kubeflow", uuid="11111111-2222-4333-8444-555555555555", type="kubernetes")
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
IMAGE = "registry.example/charm/webhook@sha256:" + "1" * 64
"""The resource `webhook-image`."""
SHIM = {"shim-image": "registry.example/shim:1"}
"""The option without which nothing may opt in."""


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


_FILES = tempfile.TemporaryDirectory(prefix="istio-aux-charm-")


def image_resource(**details: str) -> testing.Resource:
    """Returns the resource as Juju hands it to a charm: a file with the image's details."""
    file = pathlib.Path(tempfile.mkstemp(dir=_FILES.name)[1])
    file.write_text(yaml.safe_dump({"registrypath": IMAGE, **details}))
    return testing.Resource(name="webhook-image", path=file)


class App:
    """The application. Unit numbers name its units."""

    def __init__(self, name: str = "istio-aux", model: testing.Model = MODEL) -> None:
        self.name = name
        self.model = model
        self.leader = 0
        self.planned: int | None = None
        """The planned units of goal-state; None for the number of units."""
        self.config: dict[str, Any] = dict(SHIM)
        self.data: dict[str, str] = {}
        self.resources: frozenset[testing.Resource] = frozenset({image_resource()})
        self.units: dict[int, testing.State] = {}
        self.contexts: dict[int, testing.Context[IstioAuxCharm]] = {}

    def add(self, unit: int) -> None:
        """Adds a unit on which no event has run yet."""
        self.units[unit] = testing.State(model=self.model)
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
        self.config = {**SHIM, **config} if config else self.config
        for unit in range(units):
            self.add(unit)
        for unit in list(self.units):
            self.start(unit)

    def start(self, unit: int) -> None:
        elected = "leader_elected" if unit == self.leader else "config_changed"
        for event in ("install", elected, "config_changed", "start"):
            self.run(unit, event)

    def run(self, unit: int, event: str, endpoint: str = "", *, peers: bool = True) -> testing.State:
        """Runs an event on a unit, by its attribute of `Context.on`, and keeps its changes."""
        state = self._state(unit, peers=peers)
        relations = state.get_relations(endpoint)[:1] if endpoint else []
        return self._keep(unit, state, getattr(self.contexts[unit].on, event)(*relations))

    def _state(self, unit: int, *, peers: bool = True) -> testing.State:
        relations = {each for each in self.units[unit].relations if each.endpoint != "peers"}
        if peers:
            others: dict[int, dict[str, str]] = {number: {} for number in self.units if number != unit}
            relations.add(testing.PeerRelation("peers", id=99, peers_data=others, local_app_data=self.data))
        return dataclasses.replace(
            self.units[unit],
            leader=unit == self.leader,
            planned_units=len(self.units) if self.planned is None else self.planned,
            config=self.config,
            resources=self.resources,
            relations=frozenset(relations),
        )

    def _keep(self, unit: int, state: testing.State, event: Any) -> testing.State:
        return self._store(unit, self.contexts[unit].run(event, state))

    def _store(self, unit: int, out: testing.State) -> testing.State:
        self.units[unit] = out
        for relation in out.get_relations("peers"):
            if unit == self.leader:
                self.data = dict(relation.local_app_data)
        return out

    def update(self, unit: int) -> testing.State:
        return self.run(unit, "update_status")

    def act(self, unit: int, action: str, **params: object) -> dict[str, Any]:
        """Runs an action. Raises ActionFailed if it fails."""
        context = self.contexts[unit]
        self._keep(unit, self._state(unit), context.on.action(action, params=params))
        return context.action_results or {}

    def failure(self, unit: int, action: str, **params: object) -> str:
        """Runs an action that fails, and returns its message. As in Juju, what it has written stays."""
        with pytest.raises(testing.ActionFailed) as failed:
            self.act(unit, action, **params)
        self._store(unit, cast("testing.State", failed.value.state))
        return failed.value.message

    def remove_all(self) -> None:
        """Runs the last events of every unit, with none planned, the last unit first."""
        self.planned = 0
        for unit in sorted(self.units, reverse=True):
            self.remove(unit)

    def remove(self, unit: int) -> None:
        """Runs the last events of a unit."""
        for event in ("stop", "remove"):
            self.run(unit, event)
        del self.units[unit], self.contexts[unit]

    def relate(self, unit: int, relation: testing.Relation, event: str = "relation_created") -> None:
        """Adds or replaces a relation, and runs its event."""
        others = {other for other in self.units[unit].relations if other.id != relation.id}
        self.units[unit] = dataclasses.replace(self.units[unit], relations=frozenset({*others, relation}))
        self.run(unit, event, relation.endpoint)

    def relation(self, unit: int, endpoint: str) -> testing.Relation:
        return cast("testing.Relation", self.units[unit].get_relations(endpoint)[0])

    def status(self, unit: int = 0) -> ops.StatusBase:
        return cast("ops.StatusBase", self.units[unit].unit_status)
