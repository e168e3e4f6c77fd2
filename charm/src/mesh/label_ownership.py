"""Labels and annotations that an application puts on other people's objects, and the record that it leaves there: pure.

The record says what was there before, so that it can be restored. A value that was changed since is left alone.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import names

Labels = Mapping[str, str]
CONFIG, ACTION, PROTECTION = "config", "action", "protection"
"""What an object was labelled by: the option `namespaces`, an action, or the charm to keep a pod out of the mesh."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One label or annotation: its value before, and the one that was set."""

    before: str | None
    value: str


Changes = Mapping[str, Change]


@dataclasses.dataclass(frozen=True)
class LabelOwnership:
    """The record: which application changed the object, by what, and what it changed."""

    application: str
    source: str
    labels: Changes
    annotations: Changes = dataclasses.field(default_factory=dict[str, Change])

    @property
    def text(self) -> str:
        """The value of the annotation."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, annotations: Labels) -> "LabelOwnership | None":
        """The record among an object's annotations; None where there is none that can be read."""
        try:
            record: dict[str, Any] = json.loads(annotations[names.LABELLED_BY])
            changes = [
                {str(key): Change(each["before"], str(each["value"])) for key, each in record[field].items()}
                for field in ("labels", "annotations")
            ]
            return cls(str(record["application"]), str(record["source"]), *changes)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def missing(labels: Labels, desired: Labels) -> dict[str, str]:
    """The desired labels that are not there yet, or have another value."""
    return {label: value for label, value in desired.items() if labels.get(label) != value}


def changes(current: Labels, desired: Labels, recorded: Changes | None = None) -> dict[str, Change]:
    """What is to be recorded when these values are set, beside what is recorded already."""
    known = dict(recorded or {})
    for label, value in missing(current, desired).items():
        before = known[label].before if label in known else current.get(label)
        known[label] = Change(before, value)
    return known


def restored(current: Labels, recorded: Changes) -> dict[str, str | None]:
    """A merge patch of labels or annotations that restores what was there before."""
    return {label: each.before for label, each in recorded.items() if current.get(label) == each.value}
