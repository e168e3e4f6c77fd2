"""Names that the charm shares with the rest of the repository."""

import pathlib
import re

import pytest

import names

CONTRACT = (pathlib.Path(__file__).parents[3] / "contract/src/names.rs").read_text()
SHARED = (
    "INJECTION_LABEL",
    "LEGACY_INJECTION_LABEL",
    "ENABLED",
    "DISABLED",
    "MODE_ANNOTATION",
    "STATUS_ANNOTATION",
    "SHIM_LABEL",
    "PIPELINES_TOKEN_LABEL",
    "MESH_LABEL",
    "RUN_TO_COMPLETION",
    "ACCESS_PIPELINES_LABEL",
    "TENANCY_MANAGER",
    "PROXY_CONTAINER",
    "ISTIO_INJECT",
)


@pytest.mark.parametrize("name", SHARED)
def test_name_is_the_contracts(name: str) -> None:
    found = re.search(rf'pub const {name}: &str = "([^"]+)";', CONTRACT)
    assert found
    assert getattr(names, name) == found[1]
