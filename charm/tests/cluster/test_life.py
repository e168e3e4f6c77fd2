"""An application's life in a real cluster, through which what is others' lives on."""

import base64
import itertools
from collections.abc import Callable

import pytest
from lightkube.resources.core_v1 import Namespace
from ops import ActiveStatus, BlockedStatus, WaitingStatus

from tests.cluster import juju_webhook
from tests.cluster.admission import gets_its_shim, rejection
from tests.cluster.model import Model
from tests.cluster.payloads import payload, workload
from tests.cluster.removals import by_force, by_hooks
from tests.cluster.test_require_sidecar import REQUIRED
from tests.cluster.waiting import until
from tests.unit.juju import App

NO_TRUST = BlockedStatus("no rights in the cluster; run: juju trust istio-aux --scope=cluster")


def labels(model: Model, namespace: str) -> dict[str, str]:
    metadata = model.admin.get(Namespace, namespace).metadata
    return (metadata and metadata.labels) or {}


def failure_policies(model: Model) -> set[str]:
    configuration = model.read("mutatingwebhookconfiguration", "zz-istio-aux")
    return {webhook["failurePolicy"] for webhook in configuration["webhooks"]}


def trusted(model: Model) -> set[str]:
    configurations = (model.read("mutatingwebhookconfiguration", name) for name in ("istio-aux", "zz-istio-aux"))
    return {webhook["clientConfig"].get("caBundle", "") for each in configurations for webhook in each["webhooks"]}


def certificates(bundle: str) -> int:
    return base64.b64decode(bundle).count(b"-----BEGIN CERTIFICATE-----\n")


def test_job_completes_and_removal_leaves_nothing(model: Model) -> None:
    team = model.namespace(istio_injection="enabled")
    app = model.deployed({"namespaces": team, "require-sidecar": True})
    assert app.status() == REQUIRED
    assert failure_policies(model) == {"Ignore", "Fail"}
    until("the shim in pods", lambda: gets_its_shim(model, team))
    model.kubectl("create", "job", "one", "-n", team, f"--image={payload().image}", "--", "true")
    model.kubectl("wait", "job/one", "-n", team, "--for=condition=Complete", "--timeout=120s")

    app.config |= {"namespaces": "", "failure-policy": "ignore"}
    app.update(0)
    assert "istio-aux.io/injection" not in labels(model, team)
    assert failure_policies(model) == {"Ignore"}

    app.config["namespaces"] = team
    app.update(0)
    app.remove_all()
    model.until_nothing_is_left()
    assert model.marked_namespaces() == []


def test_units_after_none_bring_every_opt_in_back(model: Model) -> None:
    team, acted = model.namespace(), model.namespace()
    app = model.deployed({"namespaces": team})
    app.act(0, "enable-namespace", namespace=acted)
    written = model.written()
    app.remove_all()
    model.until_nothing_is_left()
    assert [labels(model, each).get("istio-aux.io/injection") for each in (team, acted)] == [None, None]
    app.planned = None
    app.deploy(1)
    assert app.status() == ActiveStatus()
    assert model.written() == written
    assert [labels(model, each)["istio-aux.io/injection"] for each in (team, acted)] == ["enabled", "enabled"]


def test_reconciling_again_changes_nothing(model: Model) -> None:
    app = model.deployed({"require-sidecar": True, "tenancy": True})
    until("a CA that is trusted", lambda: "" not in trusted(model) and len(trusted(model)) == 1)

    def versions() -> dict[str, str]:
        kinds = "mutatingwebhookconfigurations,deployments,clusterroles,services,validatingadmissionpolicies"
        path = "-o=jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.generation} {end}"
        selector = f"app.juju.is/created-by=istio-aux,model.juju.is/id={model.juju.uuid}"
        return dict(each.split("=") for each in model.kubectl("get", kinds, "-A", "-l", selector, path).split())

    before = versions()
    app.update(0)
    assert versions() == before
    assert len(trusted(model)) == 1, "the CA of the webhook's own stays"


def test_rotation_trusts_the_new_ca_before_it_is_served(model: Model) -> None:
    app = model.deployed()
    until("a CA that is trusted", lambda: "" not in trusted(model) and trusted(model))
    served = model.read("secret", "istio-aux-webhook-certificate")["data"]["tls.crt"]
    app.act(0, "rotate-certificates")
    until("two CAs that are trusted", lambda: all(count == 2 for count in map(certificates, trusted(model))))
    assert model.read("secret", "istio-aux-webhook-certificate")["data"]["tls.crt"] == served


def test_untrusted_application_is_blocked_until_trusted(untrusted: Model) -> None:
    app = untrusted.deployed({"namespaces": untrusted.namespace(), "require-sidecar": True}, units=2)
    assert [app.status(unit) for unit in (0, 1)] == [NO_TRUST, ActiveStatus()]
    assert app.failure(0, "list-uninjected-pods") == NO_TRUST.message
    untrusted.trust()
    app.run(0, "config_changed")
    assert app.status() == REQUIRED
    app.remove_all()
    untrusted.until_nothing_is_left()


def test_unavailable_api_is_waited_for(model: Model) -> None:
    model.use("https://127.0.0.1:1")
    app = model.deployed()
    waiting = WaitingStatus("waiting for the Kubernetes API, which does not answer; see juju debug-log")
    assert app.status() == waiting
    model.use()
    app.update(0)
    assert app.status() == ActiveStatus()


def test_webhooks_account_has_no_rights_of_the_application(model: Model) -> None:
    model.deployed()
    account = f"--as=system:serviceaccount:{model.name}:istio-aux-webhook"
    listed = model.kubectl("auth", "can-i", "--list", account, "-n", model.name, "--no-headers")
    # Without URLs, and what every account may ask about itself.
    rights = [line for line in listed.splitlines() if not line.startswith((" ", "self"))]
    may = {(line.split(".")[0].split()[0], line[line.rindex("[") :].strip()) for line in rights}
    assert may == {("secrets", "[get patch]"), ("mutatingwebhookconfigurations", "[get patch watch]")}, listed


# What is others' is never deleted, though Juju labels what an application writes as the application's own.

ACTIONS: list[Callable[[Model, App], object]] = [
    lambda model, app: app.act(0, "enable-namespace", namespace=model.name, **{"istio-injection": True}),
    lambda model, app: app.act(0, "restart-uninjected-pods", namespace=model.name, **{"dry-run": False}),
    lambda model, app: app.act(0, "disable-namespace", namespace=model.name),
]


@pytest.mark.parametrize("go", [by_hooks, by_force])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=lambda order: "".join(map(str, order)))
def test_workloads_of_other_charms_live(model: Model, go: Callable[[Model, App], None], order: tuple[int, ...]) -> None:
    jujus = {**model.labels, "app.juju.is/created-by": "katib-controller", "app.kubernetes.io/managed-by": "juju"}
    juju_webhook.install(model)
    others = {"StatefulSet": "katib-controller", "Deployment": "modeloperator"}
    for kind, name in others.items():
        made = workload(kind, name, model.name)
        model.apply([{**made, "metadata": {**made["metadata"], "labels": jujus}}])
    app = model.deployed({"namespace-selector": "part-of=profile", "applications": "katib-controller"})
    for number in order:
        ACTIONS[number](model, app)
    app.run(0, "upgrade_charm")
    for kind, name in others.items():
        assert model.read(kind, name)["metadata"]["labels"].items() >= jujus.items(), "it is not istio-aux' own"
    go(model, app)
    for kind, name in others.items():
        assert "deletionTimestamp" not in model.read(kind, name)["metadata"]
    for policy in ("Always", "Never"):
        until("a pod to be admitted", lambda policy=policy: rejection(model, model.name, policy) is None)


def test_control_patched_workload_is_deleted_with_the_application(model: Model) -> None:
    """What the emulation is for: the charm before this one patched others' templates."""
    juju_webhook.install(model)
    model.apply([workload("StatefulSet", "katib-controller", model.name)])
    app = model.deployed()
    account = f"--as=system:serviceaccount:{model.name}:istio-aux"
    patch = '{"spec": {"template": {"metadata": {"labels": {"sidecar.istio.io/inject": "true"}}}}}'

    def is_labelled() -> bool:
        model.kubectl("patch", "statefulset", "katib-controller", "-n", model.name, "-p", patch, account)
        found = model.read("statefulset", "katib-controller")["metadata"].get("labels", {})
        return found.get("app.juju.is/created-by") == "istio-aux"

    until("Juju's labels", is_labelled)
    by_force(model, app)
    left = model.kubectl("get", "statefulsets", "-n", model.name, "-o", "name")
    assert "katib-controller" not in left
