"""The charm on a real controller, in the order of an operator's life with it."""

import json
import os
import pathlib
import subprocess
from typing import Any

import jubilant
import pytest

from tests.integration.conftest import APP

SHIM_IMAGE = os.environ.get("SHIM_IMAGE", "registry.invalid/istio-aux/shim:0.1.0")
KINDS = (
    "mutatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "services",
    "clusterroles",
    "clusterrolebindings",
)


def kubectl(*arguments: str) -> str:
    """Run kubectl with the cluster of KUBECONFIG."""
    return subprocess.run(["kubectl", *arguments], check=True, capture_output=True, text=True).stdout


def created(juju: jubilant.Juju) -> list[str]:
    """What the application has made in the cluster."""
    selector = f"app.juju.is/created-by={APP},model.juju.is/name={juju.model}"
    found = kubectl("get", ",".join(KINDS), "-A", "-l", selector, "-o", "name")
    return sorted(found.split())


def labels(namespace: str) -> dict[str, str]:
    there: dict[str, Any] = json.loads(kubectl("get", "namespace", namespace, "-o", "json"))
    return there["metadata"].get("labels", {})


@pytest.fixture(scope="module")
def team(juju: jubilant.Juju) -> Any:
    """A namespace to be opted in."""
    name = f"{juju.model}-team"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def test_without_trust_it_says_the_command(juju: jubilant.Juju, charm: pathlib.Path, resources: dict[str, str]) -> None:
    juju.deploy(charm, APP, resources=resources, config={"shim-image": SHIM_IMAGE})
    juju.wait(lambda status: jubilant.all_blocked(status, APP))
    message = juju.status().apps[APP].units[f"{APP}/0"].workload_status.message
    assert message == f"no rights in the cluster; run: juju trust {APP} --scope=cluster"
    assert created(juju) == []


def test_with_trust_it_is_active(juju: jubilant.Juju) -> None:
    juju.trust(APP, scope="cluster")
    juju.wait(lambda status: jubilant.all_active(status, APP))
    assert any(name.startswith("mutatingwebhookconfiguration") for name in created(juju))


def test_webhook_is_called_for_pods_of_a_listed_namespace(juju: jubilant.Juju, team: str) -> None:
    juju.config(APP, {"namespaces": team})
    juju.wait(lambda status: jubilant.all_active(status, APP) and "istio-aux.io/injection" in labels(team))
    pod = ("run", "probe", "-n", team, "--image=registry.example/none", "--restart=Never")
    made: dict[str, Any] = json.loads(kubectl(*pod, "--dry-run=server", "-o", "json"))
    assert "holdApplicationUntilProxyStarts" in made["metadata"]["annotations"]["proxy.istio.io/config"]


def test_wrong_option_is_named_and_put_right(juju: jubilant.Juju) -> None:
    juju.config(APP, {"webhook-timeout": 99})
    status = juju.wait(lambda status: jubilant.all_blocked(status, APP))
    assert "webhook-timeout" in status.apps[APP].app_status.message
    juju.config(APP, {"webhook-timeout": 5})
    juju.wait(lambda status: jubilant.all_active(status, APP))


def test_rotation_keeps_pods_admitted(juju: jubilant.Juju, team: str) -> None:
    assert juju.run(f"{APP}/leader", "rotate-certificates").status == "completed"
    kubectl("run", "probe", "-n", team, "--image=registry.example/none", "--restart=Never", "--dry-run=server")


def test_certificates_are_issued_by_a_relation_and_handed_back(juju: jubilant.Juju, team: str) -> None:
    juju.deploy("self-signed-certificates", channel="1/stable")
    juju.integrate(f"{APP}:certificates", "self-signed-certificates:certificates")
    juju.wait(jubilant.all_active)
    kubectl("run", "probe", "-n", team, "--image=registry.example/none", "--restart=Never", "--dry-run=server")
    juju.remove_relation(f"{APP}:certificates", "self-signed-certificates:certificates")
    juju.wait(lambda status: jubilant.all_active(status, APP))
    kubectl("run", "probe", "-n", team, "--image=registry.example/none", "--restart=Never", "--dry-run=server")


def test_scale_up_and_down(juju: jubilant.Juju) -> None:
    juju.add_unit(APP, num_units=2)
    juju.wait(lambda status: len(status.apps[APP].units) == 3 and jubilant.all_active(status, APP))
    juju.remove_unit(APP, num_units=2)
    juju.wait(lambda status: len(status.apps[APP].units) == 1 and jubilant.all_active(status, APP))
    assert created(juju)


def test_actions_fail_with_one_line(juju: jubilant.Juju) -> None:
    with pytest.raises(jubilant.TaskError) as failed:
        juju.run(f"{APP}/0", "list-uninjected-pods", {"namespace": "no-such-namespace"})
    assert failed.value.task.message == "there is no namespace no-such-namespace"


def test_nothing_is_left(juju: jubilant.Juju, team: str) -> None:
    juju.remove_application(APP)
    juju.wait(lambda status: APP not in status.apps)
    assert created(juju) == []
    assert "istio-aux.io/injection" not in labels(team)
