"""A model of a Juju controller on Kubernetes.

`CHARM_FILE` is the packed charm, `WEBHOOK_IMAGE` and `SHIM_IMAGE` are images that the cluster can pull.
"""

import os
import pathlib
from collections.abc import Iterator

import jubilant
import pytest

APP = "istio-aux"


def needed(variable: str) -> str:
    """A setting of these tests."""
    value = os.environ.get(variable)
    if not value:
        pytest.fail(f"{variable} is not set; see charm/CONTRIBUTING.md")
    return value


@pytest.fixture(scope="module")
def charm() -> pathlib.Path:
    return pathlib.Path(needed("CHARM_FILE")).resolve()


@pytest.fixture(scope="module")
def resources() -> dict[str, str]:
    return {"webhook-image": needed("WEBHOOK_IMAGE")}


@pytest.fixture(scope="module")
def juju() -> Iterator[jubilant.Juju]:
    with jubilant.temp_model() as juju:
        juju.wait_timeout = 10 * 60
        yield juju
        if os.environ.get("SHOW_LOG"):
            print(juju.debug_log(limit=500))
