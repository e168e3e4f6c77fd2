"""Patches that label and unlabel namespaces."""

from typing import Any, cast

import pytest
from lightkube.resources.core_v1 import Namespace

from mesh import namespaces
from mesh.label_ownership import Change, LabelOwnership
from mesh.selectors import Selector

ME, OTHER = "kubeflow/istio-aux", "other/istio-aux"
OPT_IN = {"istio-aux.io/injection": "enabled"}
OPTED_IN = {"istio-aux.io/injection": Change(None, "enabled")}
BOTH = {**OPTED_IN, "istio-injection": Change(None, "enabled")}
MINE = LabelOwnership(ME, "config", OPTED_IN)
OVER_X = LabelOwnership(ME, "config", {"istio-aux.io/injection": Change("x", "enabled")})


def namespace(name: str, labels: dict[str, str] | None = None, owner: LabelOwnership | str | None = None) -> Namespace:
    text = owner.text if isinstance(owner, LabelOwnership) else owner
    metadata: dict[str, Any] = {"name": name, "labels": labels or {}}
    if text:
        metadata["annotations"] = {"istio-aux.io/labelled-by": text}
    return cast("Namespace", Namespace.from_dict({"metadata": metadata}))


def label(owner: LabelOwnership) -> dict[str, Any]:
    return {"metadata": {"labels": OPT_IN, "annotations": {"istio-aux.io/labelled-by": owner.text}}}


def restore(value: str | None) -> dict[str, Any]:
    labels = {"istio-aux.io/injection": value}
    return {"metadata": {"labels": labels, "annotations": {"istio-aux.io/labelled-by": None}}}


FORGET = {"metadata": {"labels": {}, "annotations": {"istio-aux.io/labelled-by": None}}}


@pytest.mark.parametrize(
    ("there", "listed", "patches"),
    [
        pytest.param(namespace("team"), ["team"], {"team": label(MINE)}, id="listed"),
        pytest.param(
            namespace("team", {"istio-aux.io/injection": "x"}), ["team"], {"team": label(OVER_X)}, id="other-value"
        ),
        pytest.param(namespace("team", OPT_IN, OVER_X), [], {"team": restore("x")}, id="other-value-restored"),
        pytest.param(
            namespace("team", {"istio-aux.io/injection": "new"}, MINE), [], {"team": FORGET}, id="changed-since"
        ),
        pytest.param(namespace("team", OPT_IN, MINE), ["team"], {}, id="labelled-already"),
        pytest.param(namespace("team", OPT_IN), ["team"], {}, id="labelled-by-a-person-and-listed"),
        pytest.param(namespace("team", OPT_IN, MINE), [], {"team": restore(None)}, id="no-longer-listed"),
        pytest.param(namespace("team", OPT_IN), [], {}, id="labelled-by-a-person"),
        pytest.param(
            namespace("team", OPT_IN, LabelOwnership(OTHER, "config", MINE.labels)), [], {}, id="by-another-application"
        ),
        pytest.param(namespace("team", OPT_IN, LabelOwnership(ME, "action", MINE.labels)), [], {}, id="by-an-action"),
        pytest.param(namespace("team", OPT_IN, '{"application": "a", "source": "b", "labels": 1}'), [], {}, id="odd"),
        pytest.param(namespace("team", OPT_IN, "{not json"), [], {}, id="record-that-cannot-be-read"),
        pytest.param(namespace("team", OPT_IN, '"text"'), [], {}, id="record-of-another-form"),
    ],
)
def test_namespace_follows_the_option(there: Namespace, listed: list[str], patches: dict[str, object]) -> None:
    assert namespaces.follow_option([there], listed, ME) == patches


def test_absent_namespaces_are_named() -> None:
    assert namespaces.absent([namespace("team")], ["gone", "team", "lost"]) == ["gone", "lost"]


def test_release_restores_only_own_labels() -> None:
    both = LabelOwnership(ME, "action", BOTH)
    there = [
        namespace("config", OPT_IN, MINE),
        namespace("action", {**OPT_IN, "istio-injection": "enabled"}, both),
        namespace("person", OPT_IN),
        namespace("other", OPT_IN, LabelOwnership(OTHER, "config", MINE.labels)),
    ]
    patches = namespaces.release(there, ME)
    assert set(patches) == {"config", "action"}
    assert patches["action"]["metadata"]["labels"] == {"istio-aux.io/injection": None, "istio-injection": None}


def test_enable_records_only_missing_labels() -> None:
    patch = namespaces.enable(namespace("team", {"istio-injection": "enabled"}), ME, istio_injection=True)
    assert patch
    assert patch["metadata"]["labels"] == OPT_IN
    assert LabelOwnership.of(patch["metadata"]["annotations"]) == LabelOwnership(ME, "action", OPTED_IN)


def test_enable_extends_the_record() -> None:
    patch = namespaces.enable(namespace("team", OPT_IN, MINE), ME, istio_injection=True)
    assert patch
    assert LabelOwnership.of(patch["metadata"]["annotations"]) == LabelOwnership(ME, "action", BOTH)


def test_second_enable_changes_nothing() -> None:
    assert namespaces.enable(namespace("team", OPT_IN), ME, istio_injection=False) is None


def test_disable_removes_manual_label_but_not_istios() -> None:
    patch = namespaces.disable(namespace("team", {**OPT_IN, "istio-injection": "enabled"}))
    assert patch
    assert patch["metadata"]["labels"] == {"istio-aux.io/injection": None}
    assert namespaces.disable(namespace("team")) is None


@pytest.mark.parametrize(
    ("labels", "opted_in", "injected"),
    [
        ({}, False, False),
        ({"istio-aux.io/injection": "enabled"}, True, False),
        ({"istio-aux.io/injection": "disabled"}, False, False),
        ({"io.datastrophic/istio-aux": "enabled", "istio-injection": "enabled"}, True, True),
        ({"istio.io/rev": "canary"}, False, True),
        ({"istio.io/rev": "canary", "istio-injection": "disabled"}, False, False),
    ],
)
def test_namespace_labels_are_read_as_webhook_and_istio_do(
    labels: dict[str, str], opted_in: bool, injected: bool
) -> None:
    there = namespace("team", labels)
    assert (namespaces.is_opted_in(there), namespaces.is_injected(there)) == (opted_in, injected)


@pytest.mark.parametrize(
    ("labels", "opted_in"),
    [
        ({"part-of": "profile"}, True),
        ({"part-of": "profile", "istio-aux.io/injection": "disabled"}, False),
        ({"part-of": "other"}, False),
        ({}, False),
    ],
)
def test_selected_namespace_is_opted_in_unless_disabled(labels: dict[str, str], opted_in: bool) -> None:
    assert namespaces.is_opted_in(namespace("team", labels), Selector.parse("part-of=profile")) is opted_in
