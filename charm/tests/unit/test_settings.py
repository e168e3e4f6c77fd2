"""Options: the good ones, and the words for the others."""

import pathlib
from typing import Any

import pytest
import yaml

from settings import Settings, WrongOptions

CHARMCRAFT = yaml.safe_load((pathlib.Path(__file__).parents[2] / "charmcraft.yaml").read_text())
DEFAULTS: dict[str, Any] = {name: option["default"] for name, option in CHARMCRAFT["config"]["options"].items()}


def test_defaults_are_all_good() -> None:
    settings = Settings.parse(DEFAULTS)
    assert settings == Settings("Fail", (), "auto", "info", False, 5, "registry.invalid/istio-aux/shim:0.1.0", "copy")


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("failure-policy", "Fail", '"Fail" is none of fail, ignore'),
        ("failure-policy", "", '"" is none of fail, ignore'),
        ("namespaces", "team, Team_B", '"Team_B" is no name of a namespace; they are separated by commas'),
        ("namespaces", "team kubeflow", '"team kubeflow" is no name of a namespace; they are separated by commas'),
        ("namespaces", "x" * 64, f'"{"x" * 64}" is no name of a namespace; they are separated by commas'),
        ("namespaces", "kube-system", "kube-system cannot be opted in; take it out"),
        ("native-sidecars", "yes", '"yes" is none of auto, on, off'),
        ("log-level", "verbose", '"verbose" is none of off, error, warn, info, debug, trace'),
        ("require-sidecar", "true", '"true" is none of true, false'),
        ("webhook-timeout", 0, '"0" is not within 1 to 30 seconds'),
        ("webhook-timeout", 31, '"31" is not within 1 to 30 seconds'),
        ("webhook-timeout", "5", '"5" is not within 1 to 30 seconds'),
        ("shim-image", "", '"" is no image reference, such as registry.invalid/istio-aux/shim:0.1.0'),
        ("shim-image", "a b", '"a b" is no image reference, such as registry.invalid/istio-aux/shim:0.1.0'),
        ("shim-image", "--help", '"--help" is no image reference, such as registry.invalid/istio-aux/shim:0.1.0'),
        ("delivery", "mount", '"mount" is none of copy, image-volume'),
    ],
)
def test_wrong_value_is_named_with_what_is_allowed(option: str, value: Any, problem: str) -> None:
    with pytest.raises(WrongOptions) as wrong:
        Settings.parse({**DEFAULTS, option: value})
    assert wrong.value.problems == (f"{option}: {problem}",)


def test_all_wrong_values_are_named() -> None:
    with pytest.raises(WrongOptions, match=r"^failure-policy: .*; webhook-timeout: .*; delivery: "):
        Settings.parse({**DEFAULTS, "failure-policy": "x", "webhook-timeout": 99, "delivery": "x"})


@pytest.mark.parametrize(
    "image",
    [
        "shim",
        "shim:1",
        "registry.example:5000/istio-aux/shim:0.1.0",
        "registry.example/a/b_c/shim@sha256:" + "0" * 64,
        "registry.invalid/istio-aux/shim:0.1.0@sha256:" + "f" * 64,
    ],
)
def test_image_references_of_any_form_are_taken(image: str) -> None:
    assert Settings.parse({**DEFAULTS, "shim-image": image}).shim_image == image


def test_namespaces_are_listed_once_in_order() -> None:
    assert Settings.parse({**DEFAULTS, "namespaces": " b,a,, b "}).namespaces == ("b", "a")
