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
    "secrets",
    "services",
    "poddisruptionbudgets",
    "deployments",
    "serviceaccounts",
    "roles",
    "rolebindings",
    "leases",
    "networkpolicies",
    "clusterroles",
    "clusterrolebindings",
)


def kubectl(*arguments: str) -> str:
    """Run kubectl with the cluster of KUBECONFIG."""
    return subprocess.run(["kubectl", *arguments], check=True, capture_output=True, text=True).stdout


def created(juju: jubilant.Juju) -> list[str]:
    """Lists the charm's cluster objects, without those that Juju made for it."""
    selector = f"app.juju.is/created-by={APP},model.juju.is/name={juju.model},app.kubernetes.io/part-of=istio-aux"
    found = kubectl("get", ",".join(KINDS), "-A", "-l", selector, "-o", "name")
    return sorted(found.split())


def labels(namespace: str) -> dict[str, str]:
    there: dict[str, Any] = json.loads(kubectl("get", "namespace", namespace, "-o", "json"))
    return there["metadata"].get("labels", {})


def dry_run(namespace: str, restart: str = "Never") -> str:
    """Returns a pod as the API server admits it, in JSON. Fails if it rejects it."""
    pod = ("run", "probe", "-n", namespace, "--image=registry.example/none", f"--restart={restart}")
    return kubectl(*pod, "--dry-run=server", "-o", "json")


def admitted(namespace: str) -> dict[str, Any]:
    """Returns a pod as the API server admits it. Fails if it rejects it, or the webhook did not change it."""
    admitted = json.loads(dry_run(namespace))
    assert "holdApplicationUntilProxyStarts" in admitted["metadata"]["annotations"]["proxy.istio.io/config"]
    return admitted


@pytest.fixture(scope="module")
def team(juju: jubilant.Juju) -> Any:
    """A namespace to be opted in."""
    name = f"{juju.model}-team"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def test_untrusted_charm_reports_the_command(
    juju: jubilant.Juju, charm: pathlib.Path, resources: dict[str, str]
) -> None:
    juju.deploy(charm, APP, resources=resources, config={"shim-image": SHIM_IMAGE})
    juju.wait(lambda status: jubilant.all_blocked(status, APP))
    message = juju.status().apps[APP].units[f"{APP}/0"].workload_status.message
    assert message == f"no rights in the cluster; run: juju trust {APP} --scope=cluster"
    assert created(juju) == []


def test_with_trust_it_is_active(juju: jubilant.Juju) -> None:
    juju.trust(APP, scope="cluster")
    juju.wait(lambda status: jubilant.all_active(status, APP))
    assert any(name.startswith("mutatingwebhookconfiguration") for name in created(juju))
    kubectl("rollout", "status", f"deployment/{APP}-webhook", "-n", str(juju.model), "--timeout=300s")


def test_webhook_is_called_for_a_listed_namespace(juju: jubilant.Juju, team: str) -> None:
    juju.config(APP, {"namespaces": team})
    juju.wait(lambda status: jubilant.all_active(status, APP) and "istio-aux.io/injection" in labels(team))
    admitted(team)


def test_wrong_option_is_named_and_put_right(juju: jubilant.Juju) -> None:
    juju.config(APP, {"webhook-timeout": 99})
    status = juju.wait(lambda status: jubilant.all_blocked(status, APP))
    assert "webhook-timeout" in status.apps[APP].app_status.message
    juju.config(APP, {"webhook-timeout": 5})
    juju.wait(lambda status: jubilant.all_active(status, APP))


def test_rotation_keeps_pods_admitted(juju: jubilant.Juju, team: str) -> None:
    assert juju.run(f"{APP}/leader", "rotate-certificates").status == "completed"
    admitted(team)


def served_issuer(juju: jubilant.Juju) -> str:
    """Returns the issuer of the webhook's certificate, as openssl in the charm's container reads it."""
    host = f"{APP}-webhook.{juju.model}.svc"
    ask = f"echo | openssl s_client -connect {host}:443 2>/dev/null | openssl x509 -noout -issuer"
    return juju.ssh(f"{APP}/0", ask, container="charm").strip()


def test_certificates_come_from_the_relation_while_related(juju: jubilant.Juju, team: str) -> None:
    assert "istio-aux CA" in served_issuer(juju)
    juju.deploy("self-signed-certificates", channel="1/stable", config={"ca-common-name": "ca-of-the-test"})
    juju.integrate(f"{APP}:certificates", "self-signed-certificates:certificates")
    juju.wait(lambda status: jubilant.all_active(status) and "ca-of-the-test" in served_issuer(juju))
    admitted(team)
    juju.remove_relation(f"{APP}:certificates", "self-signed-certificates:certificates")
    assert juju.run(f"{APP}/leader", "rotate-certificates").status == "completed"
    juju.wait(lambda status: jubilant.all_active(status, APP) and "istio-aux CA" in served_issuer(juju))
    admitted(team)


def test_charm_runs_without_root(juju: jubilant.Juju) -> None:
    assert juju.ssh(f"{APP}/0", "id -u", container="charm").strip() != "0"


def test_refresh_keeps_pods_admitted(
    juju: jubilant.Juju, charm: pathlib.Path, resources: dict[str, str], team: str
) -> None:
    juju.add_unit(APP)
    juju.wait(lambda status: len(status.apps[APP].units) == 2 and jubilant.all_active(status, APP))
    juju.refresh(APP, path=charm, resources=resources)

    def admits(status: jubilant.Status) -> bool:
        admitted(team)
        return jubilant.all_active(status, APP) and jubilant.all_agents_idle(status, APP)

    juju.wait(admits)
    juju.remove_unit(APP, num_units=1)
    juju.wait(lambda status: len(status.apps[APP].units) == 1 and jubilant.all_active(status, APP))


def test_job_completes_in_the_mesh(juju: jubilant.Juju, team: str) -> None:
    """Needs Istio with sidecars in the cluster."""
    kubectl("label", "namespace", team, "istio-injection=enabled")
    kubectl("create", "job", "one", "-n", team, "--image=busybox:1.36", "--", "sh", "-c", "sleep 5")
    kubectl("wait", "job/one", "-n", team, "--for=condition=Complete", "--timeout=300s")
    names = "-o=jsonpath={.items[0].spec.initContainers[*].name} {.items[0].spec.containers[*].name}"
    containers = kubectl("get", "pods", "-n", team, "-l", "job-name=one", names).split()
    assert {"aux-shim", "istio-proxy"} <= set(containers)


def test_metrics_reach_cos(juju: jubilant.Juju) -> None:
    juju.deploy("prometheus-k8s", channel="1/stable", trust=True)
    juju.integrate(f"{APP}:metrics-endpoint", "prometheus-k8s")
    juju.wait(jubilant.all_active)
    query = "curl -s 'localhost:9090/api/v1/query?query=istio_aux_build_info'"
    juju.wait(lambda _: f'"juju_application":"{APP}"' in juju.ssh("prometheus-k8s/0", query))


def test_tenant_is_served_until_the_option_is_off(juju: jubilant.Juju, team: str) -> None:
    """The controller's pods pull the image as Juju's pods do."""
    juju.config(APP, {"tenancy": True})
    juju.wait(lambda status: jubilant.all_active(status, APP) and "deployment" in " ".join(created(juju)))
    kubectl("rollout", "status", f"deployment/{APP}-webhook-tenancy", "-n", str(juju.model), "--timeout=300s")
    kubectl("annotate", "namespace", team, "istio-aux.io/pipelines-accounts=trainer")
    kubectl("label", "namespace", team, "istio-aux.io/tenancy=enabled")
    kubectl("wait", "rolebinding/istio-aux-pipelines", "-n", team, "--for=create", "--timeout=60s")
    juju.config(APP, {"tenancy": False})
    juju.wait(lambda status: jubilant.all_active(status, APP) and "tenancy" not in " ".join(created(juju)))
    assert not kubectl("get", "rolebinding", "istio-aux-pipelines", "-n", team, "--ignore-not-found")


def test_scale_up_and_down(juju: jubilant.Juju) -> None:
    juju.add_unit(APP, num_units=3 - len(juju.status().apps[APP].units))
    juju.wait(lambda status: len(status.apps[APP].units) == 3 and jubilant.all_active(status, APP))
    juju.remove_unit(APP, num_units=2)
    juju.wait(lambda status: len(status.apps[APP].units) == 1 and jubilant.all_active(status, APP))
    assert created(juju)


def test_actions_fail_with_one_line(juju: jubilant.Juju) -> None:
    with pytest.raises(jubilant.TaskError) as failed:
        juju.run(f"{APP}/0", "list-uninjected-pods", {"namespace": "no-such-namespace"})
    assert failed.value.task.message == "namespace not found: no-such-namespace"


def test_nothing_is_left(juju: jubilant.Juju, team: str) -> None:
    juju.remove_application(APP)
    juju.wait(lambda status: APP not in status.apps)
    assert created(juju) == []
    assert "istio-aux.io/injection" not in labels(team)


def test_forced_removal_leaves_nothing_that_denies(
    juju: jubilant.Juju, charm: pathlib.Path, resources: dict[str, str], team: str
) -> None:
    options = {"shim-image": SHIM_IMAGE, "namespaces": team, "require-sidecar": True}
    juju.deploy(charm, APP, resources=resources, trust=True, config=options)
    juju.wait(lambda status: jubilant.all_active(status, APP))
    kubectl("label", "namespace", team, "istio-injection=enabled", "istio-aux.io/injection=enabled", "--overwrite")
    juju.remove_application(APP, force=True)
    juju.wait(lambda status: APP not in status.apps)
    for restart in ("Always", "OnFailure", "Never"):
        dry_run(team, restart)
