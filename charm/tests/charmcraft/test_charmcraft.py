"""charmcraft.yaml under charmcraft's own models. Runs in the environment of the dependency group `charmcraft`."""

import copy
import pathlib
from typing import Any

import pydantic
import pytest
import yaml
from charmcraft.models import project as models

FILE = pathlib.Path(__file__).parents[2] / "charmcraft.yaml"
PROJECT: dict[str, Any] = yaml.safe_load(FILE.read_text())


def test_charmcraft_accepts_the_project() -> None:
    project = models.CharmcraftProject.from_yaml_file(FILE)
    assert isinstance(project, models.PlatformCharm)
    assert project.name == "istio-aux"
    assert set(project.platforms) == {"amd64", "arm64"}
    assert set(project.actions) == set(PROJECT["actions"])
    assert project.config["options"].keys() == PROJECT["config"]["options"].keys()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("base",), "ubuntu@99"),
        (("platforms",), {"not-an-architecture": None}),
        (("parts", "charm", "plugin"), "no-such-plugin"),
        (("summary",), None),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else str(value),
)
def test_charmcraft_rejects_invalid_project(path: tuple[str, ...], value: object) -> None:
    broken = copy.deepcopy(PROJECT)
    inner = broken
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(pydantic.ValidationError, match=path[0]):
        models.CharmcraftProject.unmarshal(broken)
