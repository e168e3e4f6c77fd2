"""Label selectors as kubectl writes them."""

import pytest

from mesh.selectors import Selector

PROFILE = {"app.kubernetes.io/part-of": "kubeflow-profile"}


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        ("a=b", [{"key": "a", "operator": "In", "values": ["b"]}]),
        ("a==b", [{"key": "a", "operator": "In", "values": ["b"]}]),
        ("a = b", [{"key": "a", "operator": "In", "values": ["b"]}]),
        ("a!=b", [{"key": "a", "operator": "NotIn", "values": ["b"]}]),
        ("a=", [{"key": "a", "operator": "In", "values": [""]}]),
        ("x.io/a in (b, c)", [{"key": "x.io/a", "operator": "In", "values": ["b", "c"]}]),
        ("a notin (b)", [{"key": "a", "operator": "NotIn", "values": ["b"]}]),
        ("a", [{"key": "a", "operator": "Exists"}]),
        ("!a", [{"key": "a", "operator": "DoesNotExist"}]),
        (
            "a in (b,c),!d",
            [{"key": "a", "operator": "In", "values": ["b", "c"]}, {"key": "d", "operator": "DoesNotExist"}],
        ),
    ],
)
def test_selector_is_parsed_as_kubectl_does(text: str, expressions: list[dict[str, object]]) -> None:
    selector = Selector.parse(text)
    assert selector
    assert selector.expressions == expressions


def test_empty_text_selects_nothing() -> None:
    assert Selector.parse("  ") is None


@pytest.mark.parametrize(
    "text",
    ["a b", "a=b c", "a in b", "a in ()", "a in (b", "=b", "a,,b", "-a=b", "a=b/c", "a>1", "a..b/c", "a-.b/c=d"],
)
def test_invalid_selector_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a label selector"):
        Selector.parse(text)


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("app.kubernetes.io/part-of=kubeflow-profile", PROFILE, True),
        ("app.kubernetes.io/part-of=kubeflow-profile", {}, False),
        ("app.kubernetes.io/part-of!=kubeflow-profile", {}, True),
        ("a in (b,c),d", {"a": "c", "d": ""}, True),
        ("a in (b,c),d", {"a": "c"}, False),
        ("!a", {"a": ""}, False),
    ],
)
def test_selector_matches_as_in_kubernetes(text: str, labels: dict[str, str], expected: bool) -> None:
    selector = Selector.parse(text)
    assert selector
    assert selector.matches(labels) is expected


def test_selector_is_written_as_cel() -> None:
    selector = Selector.parse("a in (b,c),d!=e,!f,g")
    assert selector
    assert selector.cel("labels") == (
        '("a" in labels && labels["a"] in ["b", "c"]) && !("d" in labels && labels["d"] in ["e"])'
        ' && !("f" in labels) && ("g" in labels)'
    )
