"""What each option changes, and what a wrong one does not."""

from typing import Any

import pytest
from ops import ActiveStatus, BlockedStatus

from tests.unit.api import Api, refusal
from tests.unit.juju import App, Clock
from tests.unit.seen import CONFIGURATION, INSTALLED, command, objects

WRONG: dict[str, Any] = {"webhook-timeout": 99, "failure-policy": "never"}
WRONG_MESSAGE = (
    'wrong options, the ones before are kept: failure-policy: "never" is none of fail, ignore; '
    'webhook-timeout: "99" is not within 1 to 30 seconds'
)


def test_wrong_options_change_nothing_until_they_are_right(app: App, api: Api) -> None:
    app.config = {"log-level": "debug"}
    app.deploy()
    before = (command(app), api.get(*CONFIGURATION), len(api.writes))
    app.config = {"log-level": "trace", **WRONG}
    app.run(0, app.contexts[0].on.config_changed())
    assert app.status() == BlockedStatus(WRONG_MESSAGE)
    assert (command(app), api.get(*CONFIGURATION), len(api.writes)) == before
    app.config = {"log-level": "trace", "webhook-timeout": 9}
    app.run(0, app.contexts[0].on.config_changed())
    assert app.status() == ActiveStatus()
    assert "--log-level trace" in command(app)
    assert api.get(*CONFIGURATION)["webhooks"][0]["timeoutSeconds"] == 9


def test_under_wrong_options_the_ones_before_serve_new_units_and_renewals(app: App, clock: Clock) -> None:
    app.config = {"log-level": "debug"}
    app.deploy()
    app.config = WRONG
    app.add(1)
    app.start(1)
    assert app.status(1) == BlockedStatus(WRONG_MESSAGE)
    assert "--log-level debug" in command(app, 1)
    first = app.kept().current
    clock.passes(days=300)
    app.update(0)
    assert app.kept().previous_authority == first.authority


def test_options_wrong_from_the_first_start_nothing(app: App, api: Api) -> None:
    app.config = WRONG
    app.deploy()
    assert app.status() == BlockedStatus(WRONG_MESSAGE)
    assert objects(api) == {}
    assert app.container(0).plan.services == {}
    app.config = {}
    app.run(0, app.contexts[0].on.config_changed())
    assert app.status() == ActiveStatus()


def test_namespaces_are_labelled_and_unlabelled_as_the_option_says(app: App, api: Api) -> None:
    app.config = {"namespaces": "team"}
    app.deploy()
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}
    app.config = {"namespaces": ""}
    app.update(0)
    assert api.labels("team") == {}
    assert api.get("Namespace", "team")["metadata"]["annotations"] == {}


def test_namespace_that_is_not_there_is_said_and_labelled_once_it_is(app: App, api: Api) -> None:
    app.config = {"namespaces": "team,later"}
    app.deploy()
    message = "namespaces: there is no later; create it, or take it out of the option"
    assert app.status() == BlockedStatus(message)
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}
    assert app.served(0)
    api.put("Namespace", "later")
    app.update(0)
    assert app.status() == ActiveStatus()
    assert api.labels("later") == {"istio-aux.io/injection": "enabled"}


def template_labels(api: Api, kind: str, name: str) -> dict[str, str]:
    return api.get(kind, name, "kubeflow")["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("labels", [{"istio-injection": "enabled"}, {"istio-aux.io/injection": "enabled"}, None])
def test_model_operator_and_own_pods_stay_out_of_the_mesh_when_the_model_is_opted_in(
    app: App, api: Api, labels: dict[str, str] | None
) -> None:
    if labels:
        api.put("Namespace", "kubeflow", metadata={"labels": labels})
    else:
        app.config = {"namespaces": "kubeflow"}
    app.deploy()
    for kind, name in (("Deployment", "modeloperator"), ("StatefulSet", "istio-aux")):
        assert template_labels(api, kind, name) == {"sidecar.istio.io/inject": "false"}
    writes = [write for write in api.writes if write[1] == "Deployment/modeloperator"]
    app.update(0)
    assert [write for write in api.writes if write[1] == "Deployment/modeloperator"] == writes


def test_model_operator_is_not_touched_otherwise_nor_where_somebody_decided(app: App, api: Api) -> None:
    app.deploy()
    assert template_labels(api, "Deployment", "modeloperator") == {}
    template_labels(api, "Deployment", "modeloperator")["sidecar.istio.io/inject"] = "true"
    del api.objects["StatefulSet", "kubeflow", "istio-aux"]
    app.config = {"namespaces": "kubeflow"}
    app.update(0)
    assert template_labels(api, "Deployment", "modeloperator") == {"sidecar.istio.io/inject": "true"}


def test_requirement_of_sidecars_comes_and_goes(app: App, api: Api) -> None:
    service = {"name": "istiod", "namespace": "mesh"}
    webhooks = [
        {"name": "a", "clientConfig": {"service": service}},
        {"name": "b", "clientConfig": {"url": "https://x"}},
    ]
    for webhook in webhooks:
        webhook.update(admissionReviewVersions=["v1"], sideEffects="None")
    injector = "istio-sidecar-injector"
    api.put(
        "MutatingWebhookConfiguration", injector, metadata={"labels": {"app": "sidecar-injector"}}, webhooks=webhooks
    )
    app.config = {"require-sidecar": True}
    app.deploy()
    del api.objects["MutatingWebhookConfiguration", None, injector]
    app.update(0)
    constraints = api.get("ValidatingAdmissionPolicy", "istio-aux-kubeflow")["spec"]["matchConstraints"]
    exempt = constraints["namespaceSelector"]["matchExpressions"][0]["values"]
    assert exempt == ["istio-system", "kube-system", "mesh"]
    app.config = {}
    app.update(0)
    assert objects(api) == INSTALLED


def test_requirement_of_sidecars_on_an_old_server_is_said(app: App, api: Api) -> None:
    app.config = {"require-sidecar": True}
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        api.refused[kind] = refusal(404, "the server could not find the requested resource")
    app.config["namespaces"] = "team"
    app.deploy()
    assert app.status() == BlockedStatus("require-sidecar: needs Kubernetes 1.30 or newer; set it to false")
    assert objects(api) == INSTALLED
    assert api.labels("team"), "all the rest is done"
    assert app.act(0, "rotate-certificates")
    app.config = {}
    app.update(0)
    assert app.status() == ActiveStatus()
