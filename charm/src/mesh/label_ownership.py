"""Records which labels and annotations an application sets on objects of other owners: pure.

The record holds the previous values, to restore them. A value that was changed since stays.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import names

Labels = Mapping[str, str]
CONFIG, ACTION, PROTECTION = "config", "action", "protection"
"""Sources of a label: the option `namespaces`, an action, or the charm to exclude a pod from the mesh."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A label or annotation: its previous value, and the one that was set."""

    before: str | None
    value: str


Changes = Mapping[str, Change]


@dataclasses.dataclass(frozen=True)
class LabelOwnership:
    """The record: which application changed the object, for which source, and its changes."""

    application: str
    source: str
    labels: Changes
    annotations: Changes = dataclasses.field(default_factory=dict[str, Change])

    @property
    def text(self) -> str:
        """Returns the value of the annotation."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, annotations: Labels) -> "LabelOwnership | None":
        """Parses the record among an object's annotations; None if it is absent or invalid."""
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
    """Returns the desired labels that are absent or have another value."""
    return {label: value for label, value in desired.items() if labels.get(label) != value}


def changes(current: Labels, desired: Labels, recorded: Changes | None = None) -> dict[str, Change]:
    """Returns the record after these values are set, with what is recorded already."""
    known = dict(recorded or {})
    for label, value in missing(current, desired).items():
        before = known[label].before if label in known else current.get(label)
        known[label] = Change(before, value)
    return known


def restored(current: Labels, recorded: Changes) -> dict[str, str | None]:
    """Returns a merge patch of labels or annotations that restores the previous values."""
    return {label: each.before for label, each in recorded.items() if current.get(label) == each.value}
