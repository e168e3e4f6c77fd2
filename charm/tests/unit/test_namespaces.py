"""Patches that label and restore namespaces."""

from typing import Any, cast

import pytest
from lightkube.resources.core_v1 import Namespace

from mesh import namespaces
from mesh.namespaces import Labels, Record
from mesh.selectors import Selector

ME, OTHER = "kubeflow/istio-aux", "other/istio-aux"
INJECTION, ISTIO = "istio-aux.io/injection", "istio-injection"
OPT_IN = {INJECTION: "enabled"}
BOTH = {**OPT_IN, ISTIO: "enabled"}
MINE = Record(ME, {INJECTION: None}, OPT_IN)
OVER_X = Record(ME, {INJECTION: "x"}, OPT_IN)
MINE_BOTH = Record(ME, {INJECTION: None, ISTIO: None}, BOTH)


def namespace(name: str, labels: dict[str, str] | None = None, record: Record | str | None = None) -> Namespace:
    text = record.text if isinstance(record, Record) else record
    metadata: dict[str, Any] = {"name": name, "labels": labels or {}}
    if text:
        metadata["annotations"] = {"istio-aux.io/labelled-by": text}
    return cast("Namespace", Namespace.from_dict({"metadata": metadata}))


def patch(labels: dict[str, str | None], record: Record | None) -> dict[str, Any]:
    text = record.text if record else None
    return {"metadata": {"labels": labels, "annotations": {"istio-aux.io/labelled-by": text}}}


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        pytest.param(namespace("team"), OPT_IN, patch({**OPT_IN}, MINE), id="wanted"),
        pytest.param(namespace("team", {INJECTION: "x"}), OPT_IN, patch({**OPT_IN}, OVER_X), id="other-value"),
        pytest.param(namespace("team", OPT_IN, OVER_X), {}, patch({INJECTION: "x"}, None), id="value-restored"),
        pytest.param(namespace("team", {INJECTION: "new"}, MINE), {}, patch({}, None), id="changed-since"),
        pytest.param(
            namespace("team", {INJECTION: "x"}, MINE), OPT_IN, patch({**OPT_IN}, OVER_X), id="changed-but-wanted"
        ),
        pytest.param(namespace("team", OPT_IN, MINE), OPT_IN, None, id="labelled-already"),
        pytest.param(namespace("team", OPT_IN), OPT_IN, None, id="labelled-by-a-person-and-wanted"),
        pytest.param(namespace("team", OPT_IN, MINE), {}, patch({INJECTION: None}, None), id="not-wanted-any-more"),
        pytest.param(namespace("team", OPT_IN), {}, None, id="labelled-by-a-person"),
        pytest.param(namespace("team", OPT_IN, Record(OTHER, {}, OPT_IN)), {}, None, id="by-another-application"),
        pytest.param(namespace("team", OPT_IN, MINE), BOTH, patch({ISTIO: "enabled"}, MINE_BOTH), id="one-label-more"),
        pytest.param(namespace("team", BOTH, MINE_BOTH), OPT_IN, patch({ISTIO: None}, MINE), id="one-label-less"),
        pytest.param(namespace("team", OPT_IN, '{"application": "a", "before": 1}'), {}, None, id="odd"),
        pytest.param(namespace("team", OPT_IN, "{not json"), {}, None, id="record-that-cannot-be-read"),
        pytest.param(namespace("team", OPT_IN, '"text"'), {}, None, id="record-of-another-form"),
    ],
)
def test_namespace_is_labelled_as_wanted(there: Namespace, wanted: Labels, expected: dict[str, object] | None) -> None:
    assert namespaces.follow(there, wanted, ME) == expected


def test_label_of_a_person_is_removed_but_not_istios() -> None:
    made = namespaces.opt_out(namespace("team", {**OPT_IN, "io.datastrophic/istio-aux": "enabled", ISTIO: "enabled"}))
    assert made == {"metadata": {"labels": {INJECTION: None, "io.datastrophic/istio-aux": None}}}
    assert namespaces.opt_out(namespace("team")) is None


@pytest.mark.parametrize(
    ("labels", "opted_in", "injected"),
    [
        ({}, False, False),
        ({INJECTION: "enabled"}, True, False),
        ({INJECTION: "disabled"}, False, False),
        ({"io.datastrophic/istio-aux": "enabled", ISTIO: "enabled"}, True, True),
        ({"istio.io/rev": "canary"}, False, True),
        ({"istio.io/rev": "canary", ISTIO: "disabled"}, False, False),
        ({"part-of": "profile"}, True, False),
        ({"part-of": "profile", INJECTION: "disabled"}, False, False),
        ({"part-of": "other"}, False, False),
    ],
)
def test_namespace_labels_are_read_as_webhook_and_istio_do(
    labels: dict[str, str], opted_in: bool, injected: bool
) -> None:
    there, selector = namespace("team", labels), Selector.parse("part-of=profile")
    assert (namespaces.is_opted_in(there, selector), namespaces.is_injected(there)) == (opted_in, injected)
