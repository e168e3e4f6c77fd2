"""Reads names, labels and annotations of API objects, any of which may be absent. Pure."""

from collections.abc import Mapping
from typing import cast

from lightkube.models.meta_v1 import ObjectMeta


def of(thing: object) -> ObjectMeta:
    """Returns an object's metadata."""
    return cast("ObjectMeta | None", getattr(thing, "metadata", None)) or ObjectMeta()


def name(thing: object) -> str:
    """Returns an object's name."""
    return of(thing).name or ""


def namespace(thing: object) -> str | None:
    """Returns an object's namespace; None if it is cluster-scoped."""
    return of(thing).namespace


def labels(thing: object) -> Mapping[str, str]:
    """Returns an object's labels."""
    return _strings(thing, "labels")


def annotations(thing: object) -> Mapping[str, str]:
    """Returns an object's annotations."""
    return _strings(thing, "annotations")


def _strings(thing: object, field: str) -> Mapping[str, str]:
    # lightkube says only that it is a dictionary.
    return cast("Mapping[str, str] | None", getattr(of(thing), field)) or {}
