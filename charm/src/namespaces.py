"""Which namespaces to label and to unlabel: pure, from namespaces as they are to merge patches."""

from collections.abc import Iterable, Sequence

from lightkube.resources.core_v1 import Namespace

import marks
import metadata
import names
from cluster import Patch
from marks import ACTION, CONFIG, Mark

Patches = dict[str, Patch]
"""Merge patches by the namespace's name."""


def is_opted_in(namespace: Namespace) -> bool:
    """Whether the webhook is called for the namespace's pods."""
    labels = metadata.labels(namespace)
    return names.ENABLED in (labels.get(names.INJECTION_LABEL), labels.get(names.LEGACY_INJECTION_LABEL))


def is_injected(namespace: Namespace) -> bool:
    """Whether Istio injects into the namespace's pods without a label on them."""
    labels = metadata.labels(namespace)
    decided = labels.get(names.ISTIO_INJECTION_LABEL)
    return decided == "enabled" if decided else names.ISTIO_REVISION_LABEL in labels


def mark_of(namespace: Namespace) -> Mark | None:
    """Who labelled the namespace, if an application of this charm did."""
    return Mark.of(metadata.annotations(namespace))


def absent(namespaces: Iterable[Namespace], listed: Sequence[str]) -> list[str]:
    """Those of the option's namespaces that do not exist."""
    existing = {metadata.name(namespace) for namespace in namespaces}
    return [name for name in listed if name not in existing]


def follow_option(namespaces: Iterable[Namespace], listed: Sequence[str], application: str) -> Patches:
    """Label what the option lists, and unlabel what it listed before."""
    patches: Patches = {}
    for namespace in namespaces:
        name, mark = metadata.name(namespace), mark_of(namespace)
        if name in listed:
            wanted = {names.INJECTION_LABEL: names.ENABLED}
            if marks.missing(metadata.labels(namespace), wanted):
                patches[name] = {"metadata": marks.marked(Mark(application, CONFIG, tuple(wanted)), wanted)}
        elif mark and (mark.application, mark.through) == (application, CONFIG):
            patches[name] = {"metadata": marks.unmarked(mark)}
    return patches


def release(namespaces: Iterable[Namespace], application: str) -> Patches:
    """Unlabel all that the application has labelled, for its removal."""
    ours = ((namespace, mark_of(namespace)) for namespace in namespaces)
    return {
        metadata.name(namespace): {"metadata": marks.unmarked(mark)}
        for namespace, mark in ours
        if mark and mark.application == application
    }


def enable(namespace: Namespace, application: str, *, istio_injection: bool) -> Patch | None:
    """Opt a namespace in at an operator's word; None where it is."""
    wanted = {names.INJECTION_LABEL: names.ENABLED}
    if istio_injection:
        wanted[names.ISTIO_INJECTION_LABEL] = "enabled"
    lacking = marks.missing(metadata.labels(namespace), wanted)
    if not lacking:
        return None
    before = mark_of(namespace)
    ours = before.labels if before and before.application == application else ()
    return {"metadata": marks.marked(Mark(application, ACTION, tuple({**dict.fromkeys(ours), **lacking})), lacking)}


def disable(namespace: Namespace) -> Patch | None:
    """Opt a namespace out at an operator's word, whoever opted it in; None where nobody did.

    Istio's own label goes only where this charm put it.
    """
    mark = mark_of(namespace)
    if not mark and not is_opted_in(namespace):
        return None
    ours = mark.labels if mark else ()
    labels = dict.fromkeys((names.INJECTION_LABEL, names.LEGACY_INJECTION_LABEL, *ours))
    return {"metadata": {"labels": labels, "annotations": {names.LABELLED_BY: None}}}
