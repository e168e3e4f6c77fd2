"""Decides which namespaces to label and to unlabel: pure, from namespaces to merge patches."""

from collections.abc import Iterable, Sequence

from lightkube.resources.core_v1 import Namespace

import names
from cluster import metadata
from cluster.client import Patch
from mesh import label_ownership
from mesh.label_ownership import ACTION, CONFIG, LabelOwnership
from mesh.selectors import Selector

Patches = dict[str, Patch]
"""Merge patches by name of the namespace."""

OPT_IN = {names.INJECTION_LABEL: names.ENABLED}


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


def is_ambient(namespace: Namespace) -> bool:
    """Returns true if the namespace's pods are in Istio's ambient mesh."""
    return metadata.labels(namespace).get(names.AMBIENT_LABEL) == names.AMBIENT


def ownership_of(namespace: Namespace) -> LabelOwnership | None:
    """Returns the record of the application that labelled the namespace, if any."""
    return LabelOwnership.of(metadata.annotations(namespace))


def absent(namespaces: Iterable[Namespace], listed: Sequence[str]) -> list[str]:
    """Returns the listed namespaces that do not exist."""
    existing = {metadata.name(namespace) for namespace in namespaces}
    return [name for name in listed if name not in existing]


def follow_option(namespaces: Iterable[Namespace], listed: Sequence[str], application: str) -> Patches:
    """Labels the listed namespaces, and restores those that are no longer listed."""
    patches: Patches = {}
    for namespace in namespaces:
        name, owner = metadata.name(namespace), ownership_of(namespace)
        if name in listed:
            if label_ownership.missing(metadata.labels(namespace), OPT_IN):
                patches[name] = _label(namespace, application, CONFIG, OPT_IN)
        elif owner and (owner.application, owner.source) == (application, CONFIG):
            patches[name] = _restore(namespace, owner)
    return patches


def release(namespaces: Iterable[Namespace], application: str) -> Patches:
    """Restores all namespaces that the application labelled, for its removal."""
    owners = ((namespace, ownership_of(namespace)) for namespace in namespaces)
    return {
        metadata.name(namespace): _restore(namespace, owner)
        for namespace, owner in owners
        if owner and owner.application == application
    }


def enable(namespace: Namespace, application: str, *, istio_injection: bool) -> Patch | None:
    """Opts a namespace in for an action; None if it is opted in already, by an action or by hand."""
    desired = {**OPT_IN, names.ISTIO_INJECTION_LABEL: "enabled"} if istio_injection else OPT_IN
    owner = ownership_of(namespace)
    by_option = owner and (owner.application, owner.source) == (application, CONFIG)
    if not by_option and not label_ownership.missing(metadata.labels(namespace), desired):
        return None
    return _label(namespace, application, ACTION, desired)


def disable(namespace: Namespace) -> Patch | None:
    """Opts a namespace out for an action, also if it was labelled by hand; None if it is not opted in.

    Istio's own label is removed only if this charm set it.
    """
    owner = ownership_of(namespace)
    if not owner and not is_opted_in(namespace):
        return None
    current = metadata.labels(namespace)
    opt_ins = (names.INJECTION_LABEL, names.LEGACY_INJECTION_LABEL)
    removed = {label: None for label in opt_ins if current.get(label) == names.ENABLED}
    restored = label_ownership.restored(current, owner.labels) if owner else {}
    return {"metadata": {"labels": {**removed, **restored}, "annotations": {names.LABELLED_BY: None}}}


def _label(namespace: Namespace, application: str, source: str, desired: dict[str, str]) -> Patch:
    current, before = metadata.labels(namespace), ownership_of(namespace)
    recorded = before.labels if before and before.application == application else None
    owner = LabelOwnership(application, source, label_ownership.changes(current, desired, recorded))
    labels = label_ownership.missing(current, desired)
    return {"metadata": {"labels": labels, "annotations": {names.LABELLED_BY: owner.text}}}


def _restore(namespace: Namespace, owner: LabelOwnership) -> Patch:
    labels = label_ownership.restored(metadata.labels(namespace), owner.labels)
    return {"metadata": {"labels": labels, "annotations": {names.LABELLED_BY: None}}}
