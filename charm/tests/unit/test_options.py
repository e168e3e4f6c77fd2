"""Effects of each option, and of invalid ones."""

import json
from typing import Any

import pytest
from ops import ActiveStatus, BlockedStatus, WaitingStatus

from tests.unit.api import Api, api_error
from tests.unit.juju import App, Clock
from tests.unit.seen import CONFIGURATION, INSTALLED, command, objects

WRONG: dict[str, Any] = {"webhook-timeout": 99, "failure-policy": "never"}
WRONG_MESSAGE = (
    "invalid options; keeping the previous ones: failure-policy: \"never\" is invalid: must be 'fail' or 'ignore'; "
    'webhook-timeout: "99" is invalid: must be less than or equal to 30'
)


def test_invalid_options_change_nothing(app: App, api: Api) -> None:
    app.deploy(config={"log-level": "debug"})
    before = (command(app), api.get(*CONFIGURATION), len(api.writes))
    app.config = {"log-level": "trace", **WRONG}
    app.run(0, app.contexts[0].on.config_changed())
    assert app.status() == BlockedStatus(WRONG_MESSAGE)
    assert (command(app), api.get(*CONFIGURATION), len(api.writes)) == before
    app.config = {"log-level": "trace", "webhook-timeout": 9}
    app.run(0, app.contexts[0].on.config_changed())
    assert app.status() == ActiveStatus()
    assert "--log-level trace" in command(app)
    assert api.get(*CONFIGURATION)["webhooks"][-1]["timeoutSeconds"] == 9


def test_invalid_options_keep_previous_for_new_units_and_renewals(app: App, clock: Clock) -> None:
    app.deploy(config={"log-level": "debug"})
    app.config = WRONG
    app.add(1)
    app.start(1)
    assert app.status(1) == BlockedStatus(WRONG_MESSAGE)
    assert "--log-level debug" in command(app, 1)
    first = app.kept().current
    clock.passes(days=300)
    app.update(0)
    assert app.kept().previous_ca == first.ca


def test_options_wrong_from_the_first_start_nothing(app: App, api: Api) -> None:
    app.deploy(config=WRONG)
    assert app.status() == BlockedStatus(WRONG_MESSAGE)
    assert objects(api) == {}
    assert app.container(0).plan.services == {}
    app.config = {}
    app.run(0, app.contexts[0].on.config_changed())
    assert app.status() == ActiveStatus()


def test_option_added_by_refresh_has_its_default(app: App) -> None:
    app.deploy()
    app.data["options"] = json.dumps({"log-level": "debug"})
    app.config = WRONG
    app.churn(0)
    app.run(0, app.contexts[0].on.pebble_ready(app.container(0)))
    assert "--log-level debug" in command(app)
    assert "--delivery copy" in command(app)


def test_options_are_taken_by_one_unit_after_another(app: App, clock: Clock) -> None:
    app.deploy(3)
    app.config = {"log-level": "debug"}
    for unit in (2, 1):
        app.run(unit, app.contexts[unit].on.config_changed())
        assert "--log-level info" in command(app, unit)
        assert app.status(unit) == WaitingStatus("waiting for other units to restart the webhook with the new options")
    app.run(0, app.contexts[0].on.config_changed())
    assert "--log-level debug" in command(app, 0)
    app.peers_changed(2)
    assert "--log-level info" in command(app, 2)
    app.peers_changed(1)
    app.peers_changed(2)
    assert "--log-level debug" in command(app, 1)
    assert "--log-level debug" in command(app, 2)


def test_unit_stops_waiting_for_an_unavailable_one(app: App, clock: Clock) -> None:
    app.deploy(2)
    app.config = {"log-level": "debug"}
    app.update(1)
    clock.passes(seconds=299)
    app.update(1)
    assert "--log-level info" in command(app, 1)
    clock.passes(seconds=1)
    app.update(1)
    assert "--log-level debug" in command(app, 1)


def test_namespaces_follow_the_option(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "team"})
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}
    app.config = {"namespaces": ""}
    app.update(0)
    assert api.labels("team") == {}
    assert api.get("Namespace", "team")["metadata"]["annotations"] == {}


def test_absent_namespace_is_reported_and_labelled_later(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "team,later"})
    assert app.status() == ActiveStatus("namespaces not found: later; they are labelled once they exist")
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}
    assert app.served(0)
    api.put("Namespace", "later")
    app.update(0)
    assert app.status() == ActiveStatus()
    assert api.labels("later") == {"istio-aux.io/injection": "enabled"}


def template_labels(api: Api, kind: str, name: str, namespace: str = "kubeflow") -> dict[str, str]:
    return api.get(kind, name, namespace)["spec"]["template"]["metadata"]["labels"]


OUT_OF_THE_MESH = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}


@pytest.mark.parametrize(
    "labels",
    [
        {"istio-injection": "enabled"},
        {"istio-aux.io/injection": "enabled"},
        {"istio.io/dataplane-mode": "ambient"},
        None,
    ],
)
def test_model_operator_and_own_pods_are_excluded_from_mesh(app: App, api: Api, labels: dict[str, str] | None) -> None:
    if labels:
        api.put("Namespace", "kubeflow", metadata={"labels": labels})
    else:
        app.config = {"namespaces": "kubeflow"}
    app.deploy()
    for kind, name in (("Deployment", "modeloperator"), ("StatefulSet", "istio-aux")):
        assert template_labels(api, kind, name) == OUT_OF_THE_MESH
    writes = [write for write in api.writes if write[1] == "Deployment/modeloperator"]
    app.update(0)
    assert [write for write in api.writes if write[1] == "Deployment/modeloperator"] == writes


def test_model_operator_with_own_labels_is_unchanged(app: App, api: Api) -> None:
    app.deploy()
    assert template_labels(api, "Deployment", "modeloperator") == {}
    decided = {"sidecar.istio.io/inject": "true", "istio.io/dataplane-mode": "ambient"}
    template_labels(api, "Deployment", "modeloperator").update(decided)
    del api.objects["StatefulSet", "kubeflow", "istio-aux"]
    app.config = {"namespaces": "kubeflow"}
    app.update(0)
    assert template_labels(api, "Deployment", "modeloperator") == decided


def test_other_models_operators_are_excluded_until_removal(app: App, api: Api) -> None:
    template = {"template": {"metadata": {"labels": {}}, "spec": {"containers": []}}, "selector": {}}
    for model, labels in (("in-the-mesh", {"istio-injection": "enabled"}), ("outside", {})):
        api.put("Namespace", model, metadata={"labels": labels})
        api.put("Deployment", "modeloperator", model, spec=template)
    app.deploy()
    assert template_labels(api, "Deployment", "modeloperator", "in-the-mesh") == OUT_OF_THE_MESH
    assert template_labels(api, "Deployment", "modeloperator", "outside") == {}
    app.remove_all()
    assert template_labels(api, "Deployment", "modeloperator", "in-the-mesh") == {}


def test_namespace_deleted_meanwhile_is_skipped(app: App, api: Api) -> None:
    api.put("Namespace", "a-gone")
    app.config = {"namespaces": "a-gone,team"}
    api.vanishing.add("a-gone")
    app.deploy()
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}
    assert app.status() == ActiveStatus()


def test_require_sidecar_exempts_the_charm_of_istiod(app: App, api: Api) -> None:
    injector = "istio-sidecar-injector"
    labels = {"app": "sidecar-injector", "app.juju.is/created-by": "pilot-of-ours"}
    api.put("MutatingWebhookConfiguration", injector, metadata={"labels": labels})
    app.deploy(config={"require-sidecar": True})
    exempt = "istio-k8s, istio-pilot, pilot-of-ours"
    assert app.status() == ActiveStatus(f"sidecars required, except for istiod and {exempt}")
    del api.objects["MutatingWebhookConfiguration", None, injector]
    app.update(0)
    constraints = api.get("ValidatingAdmissionPolicy", "istio-aux-kubeflow")["spec"]["matchConstraints"]
    namespaces, pods = (constraints[f"{kind}Selector"]["matchExpressions"] for kind in ("namespace", "object"))
    assert namespaces[0]["values"] == ["istio-system", "kube-system"], "the model is not exempt, even with istiod in it"
    applications = next(each["values"] for each in pods if each["key"] == "app.kubernetes.io/name")
    assert applications == ["istio-aux", "istio-k8s", "istio-pilot", "pilot-of-ours"], "remembered without the injector"
    app.config = {}
    app.update(0)
    assert objects(api) == INSTALLED


def test_require_sidecar_on_old_server_is_reported(app: App, api: Api) -> None:
    app.config = {"require-sidecar": True}
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        api.rejected[kind] = api_error(404, "the server could not find the requested resource")
    app.config["namespaces"] = "team"
    app.deploy()
    assert app.status() == BlockedStatus("require-sidecar: needs Kubernetes 1.30 or newer; set it to false")
    assert objects(api) == INSTALLED
    assert api.labels("team"), "all the rest is done"
    assert app.act(0, "rotate-certificates")
    app.config = {}
    app.update(0)
    assert app.status() == ActiveStatus()
