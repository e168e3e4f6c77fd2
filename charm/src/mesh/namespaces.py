"""Decides which namespaces to label and to restore: pure, from namespaces to merge patches.

An annotation records which application set labels, and their previous values. A value that was changed since stays.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from lightkube.resources.core_v1 import Namespace

import names
from cluster import metadata
from cluster.client import Patch
from mesh.selectors import Selector

Labels = Mapping[str, str]

OPT_IN: Labels = {names.INJECTION_LABEL: names.ENABLED}
IN_MESH: Labels = {**OPT_IN, names.ISTIO_INJECTION_LABEL: "enabled"}


@dataclasses.dataclass(frozen=True)
class Record:
    """The application that labelled a namespace: the values it set, and those before."""

    application: str
    before: Mapping[str, str | None]
    values: Labels

    @property
    def text(self) -> str:
        """Returns the value of the annotation."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def of(cls, namespace: Namespace) -> "Record | None":
        """Reads a namespace's record; None if it is absent or invalid."""
        try:
            record: dict[str, Any] = json.loads(metadata.annotations(namespace)[names.LABELLED_BY])
            return cls(str(record["application"]), dict(record["before"]), dict(record["values"]))
        except (KeyError, TypeError, ValueError):
            return None

    def restored(self, current: Labels, kept: Labels) -> dict[str, str | None]:
        """Returns the labels to put back: those that still have the value that was set, and are not `kept`."""
        return {
            label: self.before.get(label)
            for label, value in self.values.items()
            if current.get(label) == value and label not in kept
        }


def is_opted_in(namespace: Namespace, selector: Selector | None = None) -> bool:
    """Returns true if the namespace's label or the option's selector has the webhook called for its pods."""
    labels = metadata.labels(namespace)
    if names.ENABLED in (labels.get(names.INJECTION_LABEL), labels.get(names.LEGACY_INJECTION_LABEL)):
        return True
    return bool(selector and selector.matches(labels) and labels.get(names.INJECTION_LABEL) != names.DISABLED)


def is_injected(namespace: Namespace) -> bool:
    """Returns true if Istio injects into the namespace's pods without a label on them."""
    labels = metadata.labels(namespace)
    decided = labels.get(names.ISTIO_INJECTION_LABEL)
    return decided == "enabled" if decided else names.ISTIO_REVISION_LABEL in labels


def is_ambient(*things: object) -> bool:
    """Returns true if the label of a namespace or pod, any of these, lets pods join Istio's ambient mesh."""
    return any(metadata.labels(each).get(names.AMBIENT_LABEL) == names.AMBIENT for each in things)


def follow(namespace: Namespace, wanted: Labels, application: str) -> Patch | None:
    """Labels a namespace as wanted, and restores what the application set and is not wanted any more."""
    current, record = metadata.labels(namespace), Record.of(namespace)
    record = record if record and record.application == application else None
    changed = {label: value for label, value in wanted.items() if current.get(label) != value}
    restored = record.restored(current, wanted) if record else {}
    owned = {*changed, *(record.values if record else ())} & set(wanted)
    if not changed and not restored and (not record or owned == set(record.values)):
        return None
    # If the application's value was overwritten, the new value is restored later, not the first one.
    present = {**current, **(record.restored(current, {}) if record else {})}
    before = {label: present.get(label) for label in owned}
    new = Record(application, before, {label: wanted[label] for label in owned}).text if owned else None
    return {"metadata": {"labels": {**restored, **changed}, "annotations": {names.LABELLED_BY: new}}}


def opt_out(namespace: Namespace) -> Patch | None:
    """Opts out a namespace that was labelled by hand; None if it is not opted in by a label."""
    current = metadata.labels(namespace)
    opt_ins = (names.INJECTION_LABEL, names.LEGACY_INJECTION_LABEL)
    removed = {label: None for label in opt_ins if current.get(label) == names.ENABLED}
    return {"metadata": {"labels": removed}} if removed else None
