"""Options: the good ones, and the words for the others."""

import json
import pathlib
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from settings import QUANTITY, Settings, problems

CHARMCRAFT = yaml.safe_load((pathlib.Path(__file__).parents[2] / "charmcraft.yaml").read_text())
DEFAULTS: dict[str, Any] = {name: option["default"] for name, option in CHARMCRAFT["config"]["options"].items()}


QUANTITIES = "must be cpu=QUANTITY, memory=QUANTITY or both, such as cpu=1m,memory=4Mi, or none"
IMAGE = "must be an image reference, such as registry.invalid/istio-aux/shim:0.1.0"


def test_defaults_are_all_good() -> None:
    settings = Settings.parse(DEFAULTS)
    assert settings == Settings(), "the defaults are those of charmcraft.yaml"
    assert set(Settings.model_fields) == {name.replace("-", "_") for name in DEFAULTS}


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("failure-policy", "Fail", "\"Fail\" is invalid: must be 'fail' or 'ignore'"),
        ("failure-policy", "", "\"\" is invalid: must be 'fail' or 'ignore'"),
        ("namespaces", "team, Team_B", '"Team_B" is not a valid name; separate names by commas'),
        ("namespaces", "team kubeflow", '"team kubeflow" is not a valid name; separate names by commas'),
        ("namespaces", "x" * 64, f'"{"x" * 64}" is not a valid name; separate names by commas'),
        ("namespaces", "kube-system", "kube-system cannot be opted in; remove it"),
        ("applications", "Katib", '"Katib" is not a valid name; separate names by commas'),
        ("applications", "a b", '"a b" is not a valid name; separate names by commas'),
        ("native-sidecars", "yes", "\"yes\" is invalid: must be 'auto', 'enabled' or 'disabled'"),
        ("log-level", "verbose", "\"verbose\" is invalid: must be 'off', 'error', 'warn', 'info', 'debug' or 'trace'"),
        ("require-sidecar", "true", '"true" is invalid: must be a valid boolean'),
        ("webhook-timeout", 0, '"0" is invalid: must be greater than or equal to 1'),
        ("webhook-timeout", 31, '"31" is invalid: must be less than or equal to 30'),
        ("webhook-timeout", "5", '"5" is invalid: must be a valid integer'),
        ("shim-image", "", IMAGE),
        ("shim-image", "a b", IMAGE),
        ("shim-image", "--help", IMAGE),
        ("namespace-selector", "a b", '"a b" is not a label selector, such as key=value'),
        ("shim-requests", "cpu", f'"cpu" {QUANTITIES}'),
        ("shim-limits", "cpu=1 --x", f'"cpu=1 --x" {QUANTITIES}'),
        ("shim-limits", "memory=4Megs", f'"memory=4Megs" {QUANTITIES}'),
        ("shim-limits", "cpu=1..2", f'"cpu=1..2" {QUANTITIES}'),
        ("shim-requests", "cpu=1m,ephemeral-storage=1Gi", f'"cpu=1m,ephemeral-storage=1Gi" {QUANTITIES}'),
        ("shim-limits", "", f'"" {QUANTITIES}'),
        ("delivery", "mount", "\"mount\" is invalid: must be 'copy' or 'image-volume'"),
    ],
)
def test_invalid_value_is_reported_with_valid_ones(option: str, value: Any, problem: str) -> None:
    with pytest.raises(ValidationError) as wrong:
        Settings.parse({**DEFAULTS, option: value})
    assert problems(wrong.value) == f"{option}: {problem}"


def test_quantities_are_those_of_the_chart() -> None:
    chart = json.loads((pathlib.Path(__file__).parents[3] / "deploy/helm/istio-aux/values.schema.json").read_text())
    assert chart["definitions"]["quantity"]["pattern"] == f"^{QUANTITY}$"


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
