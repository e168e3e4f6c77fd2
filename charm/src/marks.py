"""Labels that an application puts on other people's objects, and the note of them that it leaves there: pure.

What a person labelled is never taken away again: only what the note says.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import names

Labels = Mapping[str, str]
CONFIG, ACTION = "config", "action"
"""Through what something was labelled: the option `namespaces`, or an action."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """The note: who labelled this, through what, and with which labels."""

    application: str
    through: str
    labels: tuple[str, ...]

    @property
    def text(self) -> str:
        """The value of the annotation."""
        return json.dumps({"by": self.application, "through": self.through, "labels": list(self.labels)})

    @classmethod
    def of(cls, annotations: Labels) -> "Mark | None":
        """The mark among an object's annotations; None where there is none that can be read."""
        try:
            note: dict[str, Any] = json.loads(annotations[names.LABELLED_BY])
            return cls(str(note["by"]), str(note["through"]), tuple(map(str, note["labels"])))
        except (KeyError, TypeError, ValueError):
            return None


def missing(labels: Labels, wanted: Labels) -> dict[str, str]:
    """The labels that are still to be put there."""
    return {label: value for label, value in wanted.items() if labels.get(label) != value}


def unmarked(mark: Mark) -> dict[str, Any]:
    """The metadata, as a merge patch, that takes away what a mark says, and the mark."""
    return {"labels": dict.fromkeys(mark.labels), "annotations": {names.LABELLED_BY: None}}


def marked(mark: Mark, labels: Labels) -> dict[str, Any]:
    """The metadata, as a merge patch, that adds labels and the mark."""
    return {"labels": dict(labels), "annotations": {names.LABELLED_BY: mark.text}}
