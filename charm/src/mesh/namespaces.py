"""Which namespaces to label and to unlabel: pure, from namespaces as they are to merge patches."""

from collections.abc import Iterable, Sequence

from lightkube.resources.core_v1 import Namespace

import names
from cluster import metadata
from cluster.client import Patch
from mesh import label_ownership
from mesh.label_ownership import ACTION, CONFIG, LabelOwnership
from mesh.selectors import Selector

Patches = dict[str, Patch]
"""Merge patches by the namespace's name."""

OPT_IN = {names.INJECTION_LABEL: names.ENABLED}


def is_opted_in(namespace: Namespace, selector: Selector | None = None) -> bool:
    """Whether the webhook is called for the namespace's pods, by the namespace's label or by the option's selector."""
    labels = metadata.labels(namespace)
    if names.ENABLED in (labels.get(names.INJECTION_LABEL), labels.get(names.LEGACY_INJECTION_LABEL)):
        return True
    return bool(selector and selector.matches(labels) and labels.get(names.INJECTION_LABEL) != names.DISABLED)


def is_injected(namespace: Namespace) -> bool:
    """Whether Istio injects into the namespace's pods without a label on them."""
    labels = metadata.labels(namespace)
    decided = labels.get(names.ISTIO_INJECTION_LABEL)
    return decided == "enabled" if decided else names.ISTIO_REVISION_LABEL in labels


def is_ambient(namespace: Namespace) -> bool:
    """Whether the namespace's pods are in Istio's ambient mesh."""
    return metadata.labels(namespace).get(names.AMBIENT_LABEL) == names.AMBIENT


def ownership_of(namespace: Namespace) -> LabelOwnership | None:
    """Which application of this charm labelled the namespace, if one did."""
    return LabelOwnership.of(metadata.annotations(namespace))


def absent(namespaces: Iterable[Namespace], listed: Sequence[str]) -> list[str]:
    """Those of the option's namespaces that do not exist."""
    existing = {metadata.name(namespace) for namespace in namespaces}
    return [name for name in listed if name not in existing]


def follow_option(namespaces: Iterable[Namespace], listed: Sequence[str], application: str) -> Patches:
    """Label what the option lists, and unlabel what it listed before."""
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
    """Restore all that the application has labelled, for its removal."""
    owners = ((namespace, ownership_of(namespace)) for namespace in namespaces)
    return {
        metadata.name(namespace): _restore(namespace, owner)
        for namespace, owner in owners
        if owner and owner.application == application
    }


def enable(namespace: Namespace, application: str, *, istio_injection: bool) -> Patch | None:
    """Opt a namespace in by an action; None where it is, by an action or by a person."""
    desired = {**OPT_IN, names.ISTIO_INJECTION_LABEL: "enabled"} if istio_injection else OPT_IN
    owner = ownership_of(namespace)
    by_option = owner and (owner.application, owner.source) == (application, CONFIG)
    if not by_option and not label_ownership.missing(metadata.labels(namespace), desired):
        return None
    return _label(namespace, application, ACTION, desired)


def disable(namespace: Namespace) -> Patch | None:
    """Opt a namespace out by an action, whoever opted it in; None where nobody did.

    Istio's own label goes only where this charm put it.
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
