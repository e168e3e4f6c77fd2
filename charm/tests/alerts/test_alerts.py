"""The alert rules, those of the Helm charts too, under promtool, the program of the environment variable PROMTOOL."""

import os
import pathlib
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
CHARM = HERE.parents[1]
RULES = [
    *sorted((CHARM / "src/prometheus_alert_rules").glob("*.rules")),
    *sorted((CHARM.parent / "deploy/helm").glob("*/rules*.yaml")),
]


def promtool(*arguments: str | pathlib.Path) -> None:
    """Run promtool, and fail with what it says."""
    program = os.environ.get("PROMTOOL")
    if not program:
        pytest.fail("PROMTOOL is not set; next: charm/test alerts, or set it to the program")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_rules_are_well_formed(rules: pathlib.Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", rules)


@pytest.mark.parametrize("cases", sorted(HERE.glob("*_test.yaml")), ids=lambda path: path.name)
def test_alerts_fire_when_they_should(cases: pathlib.Path) -> None:
    promtool("test", "rules", cases)
