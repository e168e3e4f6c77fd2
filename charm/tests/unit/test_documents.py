"""Documents, images and modules agree with the charm."""

import pathlib
import re
import subprocess

import pytest
import yaml

from settings import Settings
from tests.unit.api import Api
from tests.unit.juju import App
from tests.unit.seen import arguments
from tests.unit.test_settings import CHARMCRAFT, DEFAULTS

CHARM = pathlib.Path(__file__).parents[2]
README = (CHARM / "README.md").read_text()
NAMES = {
    kind: sorted(names)
    for kind, names in {
        "option": CHARMCRAFT["config"]["options"],
        "action": CHARMCRAFT["actions"],
        "relation": {**CHARMCRAFT["requires"], **CHARMCRAFT["provides"]},
    }.items()
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_readme_has_it(kind: str, name: str) -> None:
    assert f"`{name}`" in README, f"{kind} {name}"


def test_readme_has_no_other_options() -> None:
    table = README.split("## Options")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.M) == list(CHARMCRAFT["config"]["options"])


@pytest.mark.parametrize("name", ["webhook", "shim"])
def test_images_are_those_of_the_manifests(name: str) -> None:
    deployment = (CHARM.parent / "deploy/overlays/self-signed/istio-aux.yaml").read_text()
    image = re.search(rf"registry\.invalid/istio-aux/{name}:[\w.]+", deployment)
    assert image
    assert image[0] in (CHARMCRAFT["resources"]["webhook-image"]["upstream-source"], DEFAULTS["shim-image"])


def test_arguments_are_documented(app: App, api: Api) -> None:
    app.deploy()
    sections = (CHARM.parent / "docs/configuration.md").read_text().split("\n## ")
    names = ("istio-aux-webhook\n", "Options of the shim in pods\n")
    of_webhook = [text for text in sections if text.startswith(names)]
    assert len(of_webhook) == 2
    documented = set(re.findall(r"^\| `(--[\w-]+)", "".join(of_webhook), re.M))
    assert {word.split("=")[0] for word in arguments(api)} <= documented


def test_charm_does_not_run_as_root() -> None:
    assert CHARMCRAFT["charm-user"] == "non-root"


def test_printed_images_are_those_of_the_charm() -> None:
    printed = subprocess.run([CHARM / "get-images.sh"], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [CHARMCRAFT["resources"]["webhook-image"]["upstream-source"], DEFAULTS["shim-image"]]


def test_package_has_icon_and_licence() -> None:
    listed = CHARMCRAFT["parts"]["about"]["prime"]
    linked = re.findall(r"\]\((\w+\.md)\)", README)
    assert {"icon.svg", "LICENSE", "README.md", *linked} - {"CONTRIBUTING.md"} == set(listed)
    for file in listed:
        # charmcraft would copy a link that leads out of the charm, and fail to pack it.
        assert (CHARM / file).is_file(), file
        assert not (CHARM / file).is_symlink(), file
    assert (CHARM / "LICENSE").read_text() == (CHARM.parent / "LICENSE").read_text()


def test_terraform_module_has_the_bundles_shape() -> None:
    files = {path.name for path in (CHARM / "terraform").iterdir() if path.is_file()}
    assert {"main.tf", "variables.tf", "outputs.tf", "versions.tf", "README.md"} <= files
    outputs = (CHARM / "terraform/outputs.tf").read_text()
    for name in NAMES["relation"]:
        assert re.search(rf'= "{name}"', outputs), name


def test_terraform_modules_differ_only_in_the_model() -> None:
    versions = [(CHARM / "terraform" / directory / "variables.tf").read_text() for directory in (".", "juju-0")]
    named = [set(re.findall(r'^variable "(\w+)"', text, re.M)) for text in versions]
    assert named[0] ^ named[1] == {"model_uuid", "model_name"}
    assert (CHARM / "terraform/juju-0/outputs.tf").read_text() == (CHARM / "terraform/outputs.tf").read_text()


def test_terraform_tests_differ_only_in_the_model() -> None:
    tests = [(CHARM / "terraform" / path / "tests/module.tftest.hcl").read_text() for path in (".", "juju-0")]
    lines = [{line for line in text.splitlines() if not re.search(r"\bmodel(_\w+)? +==?", line)} for text in tests]
    assert lines[0] == lines[1]
    inputs = set(re.findall(r'^variable "(\w+)"', (CHARM / "terraform/variables.tf").read_text(), re.M))
    given = set(re.findall(r"^ +(\w+) +=", tests[0], re.M))
    assert inputs <= given, "every input is tested"
    for name in NAMES["relation"]:
        assert f'"{name}"' in tests[0], name


def test_bundle_of_the_readme_is_one() -> None:
    text = re.search(r"```yaml\n(bundle: kubernetes\n.*?)```", README, re.S)
    assert text
    bundle = yaml.safe_load(text[1])
    options = bundle["applications"]["istio-aux"]["options"]
    assert set(options) <= set(DEFAULTS)
    Settings.parse({**DEFAULTS, **options})
    assert bundle["applications"]["istio-aux"]["trust"] is True


def test_lock_names_no_other_index() -> None:
    lock = (CHARM / "uv.lock").read_text()
    assert set(re.findall(r'registry = "([^"]+)"', lock)) == {"https://pypi.org/simple"}


def test_charm_is_a_program() -> None:
    assert (CHARM / "src/charm.py").stat().st_mode & 0o111
