"""Which namespaces are labelled and unlabelled."""

from typing import Any, cast

import pytest
from lightkube.resources.core_v1 import Namespace

import namespaces
from marks import Mark

ME, OTHER = "kubeflow/istio-aux", "other/istio-aux"
OPT_IN = {"istio-aux.io/injection": "enabled"}
MINE = Mark(ME, "config", ("istio-aux.io/injection",))


def namespace(name: str, labels: dict[str, str] | None = None, mark: Mark | str | None = None) -> Namespace:
    text = mark.text if isinstance(mark, Mark) else mark
    metadata: dict[str, Any] = {"name": name, "labels": labels or {}}
    if text:
        metadata["annotations"] = {"istio-aux.io/labelled-by": text}
    return cast("Namespace", Namespace.from_dict({"metadata": metadata}))


UNLABEL = {"metadata": {"labels": {"istio-aux.io/injection": None}, "annotations": {"istio-aux.io/labelled-by": None}}}
LABEL = {"metadata": {"labels": OPT_IN, "annotations": {"istio-aux.io/labelled-by": MINE.text}}}


@pytest.mark.parametrize(
    ("there", "listed", "patches"),
    [
        pytest.param(namespace("team"), ["team"], {"team": LABEL}, id="listed"),
        pytest.param(namespace("team", {"istio-aux.io/injection": "x"}), ["team"], {"team": LABEL}, id="other-value"),
        pytest.param(namespace("team", OPT_IN, MINE), ["team"], {}, id="labelled-already"),
        pytest.param(namespace("team", OPT_IN), ["team"], {}, id="labelled-by-a-person-and-listed"),
        pytest.param(namespace("team", OPT_IN, MINE), [], {"team": UNLABEL}, id="no-longer-listed"),
        pytest.param(namespace("team", OPT_IN), [], {}, id="labelled-by-a-person"),
        pytest.param(
            namespace("team", OPT_IN, Mark(OTHER, "config", MINE.labels)), [], {}, id="by-another-application"
        ),
        pytest.param(namespace("team", OPT_IN, Mark(ME, "action", MINE.labels)), [], {}, id="by-an-action"),
        pytest.param(namespace("team", OPT_IN, "{not json"), [], {}, id="mark-that-cannot-be-read"),
        pytest.param(namespace("team", OPT_IN, '"text"'), [], {}, id="mark-of-another-form"),
    ],
)
def test_option_is_followed(there: Namespace, listed: list[str], patches: dict[str, object]) -> None:
    assert namespaces.follow_option([there], listed, ME) == patches


def test_absent_namespaces_are_named() -> None:
    assert namespaces.absent([namespace("team")], ["gone", "team", "lost"]) == ["gone", "lost"]


def test_release_takes_away_what_was_put_there_through_options_and_actions_only() -> None:
    both = Mark(ME, "action", ("istio-aux.io/injection", "istio-injection"))
    there = [
        namespace("config", OPT_IN, MINE),
        namespace("action", OPT_IN, both),
        namespace("person", OPT_IN),
        namespace("other", OPT_IN, Mark(OTHER, "config", MINE.labels)),
    ]
    patches = namespaces.release(there, ME)
    assert set(patches) == {"config", "action"}
    assert patches["action"]["metadata"]["labels"] == {"istio-aux.io/injection": None, "istio-injection": None}


def test_enable_notes_only_the_labels_that_were_missing() -> None:
    patch = namespaces.enable(namespace("team", {"istio-injection": "enabled"}), ME, istio_injection=True)
    assert patch
    assert patch["metadata"]["labels"] == OPT_IN
    assert Mark.of(patch["metadata"]["annotations"]) == Mark(ME, "action", ("istio-aux.io/injection",))


def test_enable_adds_to_the_note_of_before() -> None:
    patch = namespaces.enable(namespace("team", OPT_IN, MINE), ME, istio_injection=True)
    assert patch
    assert Mark.of(patch["metadata"]["annotations"]) == Mark(
        ME, "action", ("istio-aux.io/injection", "istio-injection")
    )


def test_enable_has_nothing_to_do_twice() -> None:
    assert namespaces.enable(namespace("team", OPT_IN), ME, istio_injection=False) is None


def test_disable_takes_a_persons_label_too_but_not_istios() -> None:
    patch = namespaces.disable(namespace("team", {**OPT_IN, "istio-injection": "enabled"}))
    assert patch
    assert patch["metadata"]["labels"] == {"istio-aux.io/injection": None, "io.datastrophic/istio-aux": None}
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
def test_labels_of_namespaces_are_read_as_webhook_and_istio_do(
    labels: dict[str, str], opted_in: bool, injected: bool
) -> None:
    there = namespace("team", labels)
    assert (namespaces.is_opted_in(there), namespaces.is_injected(there)) == (opted_in, injected)
