"""An application's life in a real cluster: reconcile, scale, rotate, remove."""

import base64

import pytest
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace
from ops import ActiveStatus, BlockedStatus, WaitingStatus, testing

from certs import serving_cert
from tests.cluster.model import Model
from tests.cluster.test_require_sidecar import REQUIRED

NO_TRUST = BlockedStatus("no rights in the cluster; run: juju trust istio-aux --scope=cluster")


def entries(model: Model) -> list[tuple[str, str | None, str]]:
    """Name, failure policy and caBundle of the configurations' entries."""
    names = (f"istio-aux-{model.name}", f"zz-istio-aux-{model.name}")
    configurations = [model.admin.get(MutatingWebhookConfiguration, name) for name in names]
    return [
        (entry.name, entry.failurePolicy, str(entry.clientConfig.caBundle))
        for configuration in configurations
        for entry in configuration.webhooks or []
    ]


def trusted(model: Model) -> set[str]:
    bundles = {bundle for _, _, bundle in entries(model)}
    assert len(bundles) == 1
    return set(serving_cert.split(base64.b64decode(bundles.pop()).decode()))


def labels(model: Model, namespace: str) -> dict[str, str]:
    metadata = model.admin.get(Namespace, namespace).metadata
    return (metadata and metadata.labels) or {}


def test_removed_application_leaves_nothing(model: Model) -> None:
    team = model.namespace()
    app = model.deployed({"namespaces": team, "require-sidecar": True})
    assert app.status() == REQUIRED
    assert len(model.written()) == 6
    assert labels(model, team)["istio-aux.io/injection"] == "enabled"

    for unit in (1, 2):
        app.add(unit)
        app.start(unit)
    assert {app.served(unit) for unit in app.units} == {app.kept().current.text}

    first = app.kept().current
    app.act(0, "rotate-certificates")
    assert trusted(model) == {first.ca.strip(), app.kept().current.ca.strip()}
    for unit in (1, 2):
        app.secret_changed(unit)
    assert {app.served(unit) for unit in app.units} == {app.kept().current.text}

    app.config = {"namespaces": "", "failure-policy": "ignore"}
    app.update(0)
    assert "istio-aux.io/injection" not in labels(model, team)
    assert {policy for _, policy, _ in entries(model)} == {"Ignore"}
    assert len(model.written()) == 4, "the policy and its binding are gone with the option"

    app.config = {"namespaces": team}
    app.update(0)
    app.planned = 0
    for unit in (2, 1, 0):
        app.remove(unit)
    model.until_nothing_is_left()
    assert model.marked_namespaces() == []


def test_units_after_none_bring_everything_back(model: Model) -> None:
    app = model.deployed()
    app.remove_all()
    model.until_nothing_is_left()
    app.planned = None
    app.deploy(1)
    assert app.status() == ActiveStatus()
    assert len(model.written()) == 4


def test_reconciling_again_changes_nothing(model: Model) -> None:
    app = model.deployed({"require-sidecar": True})
    configuration = model.admin.get(MutatingWebhookConfiguration, f"istio-aux-{model.name}").metadata
    app.update(0)
    again = model.admin.get(MutatingWebhookConfiguration, f"istio-aux-{model.name}").metadata
    assert configuration
    assert again
    assert (again.resourceVersion, again.generation) == (configuration.resourceVersion, configuration.generation)


def test_untrusted_application_is_blocked_until_trusted(untrusted: Model) -> None:
    app = untrusted.deployed({"namespaces": untrusted.namespace(), "require-sidecar": True}, units=2)
    assert [app.status(unit) for unit in (0, 1)] == [NO_TRUST, ActiveStatus()]
    untrusted.until_nothing_is_left()
    assert (
        app.failure(0, "list-uninjected-pods") == "no rights in the cluster; run: juju trust istio-aux --scope=cluster"
    )
    with pytest.raises(testing.ActionFailed):
        app.act(0, "rotate-certificates")
    untrusted.trust()
    app.run(0, app.contexts[0].on.config_changed())
    assert app.status() == REQUIRED
    assert len(untrusted.written()) == 6
    app.remove_all()
    untrusted.until_nothing_is_left()


def test_untrusted_removal_is_not_a_hook_error(untrusted: Model) -> None:
    app = untrusted.deployed()
    app.planned = 0
    app.run(0, app.contexts[0].on.stop())
    assert app.status() == NO_TRUST
    app.remove(0)
    untrusted.until_nothing_is_left()


def test_unavailable_api_is_waited_for(model: Model) -> None:
    model.use("https://127.0.0.1:1")
    app = model.deployed()
    waiting = WaitingStatus("waiting for the Kubernetes API, which does not answer; see juju debug-log")
    assert app.status() == waiting
    app.update(0)
    assert app.status() == waiting
    with pytest.raises(testing.ActionFailed, match="the Kubernetes API does not answer; try again"):
        app.act(0, "list-uninjected-pods")
    model.back()
    app.update(0)
    assert app.status() == ActiveStatus()


@pytest.mark.parametrize(
    "action", ["list-uninjected-pods", "restart-uninjected-pods", "enable-namespace", "disable-namespace"]
)
def test_action_on_unknown_namespace_fails_with_one_line(model: Model, action: str) -> None:
    app = model.deployed()
    assert app.failure(0, action, namespace="no-such-namespace") == "namespace not found: no-such-namespace"
