"""Names that the charm shares with the rest of the repository."""

import pathlib
import re

import pytest

import names

REPOSITORY = pathlib.Path(__file__).parents[3]
CONTRACT = (REPOSITORY / "contract/src/names.rs").read_text()
POLICY = (REPOSITORY / "charm/src/cluster/require-sidecar.yaml").read_text()
SHARED = (
    "INJECTION_LABEL",
    "LEGACY_INJECTION_LABEL",
    "ENABLED",
    "DISABLED",
    "MODE_ANNOTATION",
    "STATUS_ANNOTATION",
    "SHIM_LABEL",
    "TENANCY_MANAGER",
    "PROXY_CONTAINER",
    "ISTIO_INJECT",
)


@pytest.mark.parametrize("name", SHARED)
def test_name_is_the_contracts(name: str) -> None:
    found = re.search(rf'pub const {name}: &str = "([^"]+)";', CONTRACT)
    assert found
    assert getattr(names, name) == found[1]


def test_policys_labels_are_the_charms() -> None:
    labels = set(re.findall(r"\b([\w./-]*istio[\w./-]*)(?:'\]|' in|, operator)", POLICY))
    assert len(labels) == 7
    assert all(label in vars(names).values() for label in labels)
