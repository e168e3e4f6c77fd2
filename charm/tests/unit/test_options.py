"""Effects of each option, and of invalid ones."""

import json
from typing import Any

import pytest
from ops import ActiveStatus, BlockedStatus

from tests.unit.api import Api, api_error
from tests.unit.juju import SHIM, App
from tests.unit.seen import CONFIGURATION, INSTALLED, WEBHOOK, arguments, objects, webhooks

WRONG: dict[str, Any] = {"webhook-timeout": 99, "failure-policy": "never"}
WRONG_MESSAGE = (
    "invalid options; keeping the previous ones: failure-policy: \"never\" is invalid: must be 'fail' or 'ignore'; "
    'webhook-timeout: "99" is invalid: must be less than or equal to 30'
)


def test_invalid_options_change_nothing(app: App, api: Api) -> None:
    app.deploy(config={"log-level": "debug"})
    before = len(api.writes)
    app.config = {"log-level": "trace", **WRONG}
    app.run(0, "config_changed")
    assert app.status() == BlockedStatus(WRONG_MESSAGE)
    assert len(api.writes) == before
    app.config = {"log-level": "trace", "webhook-timeout": 9, **SHIM}
    app.run(0, "config_changed")
    assert app.status() == ActiveStatus()
    assert "--log-level=trace" in arguments(api)
    assert api.get(*CONFIGURATION)["webhooks"][-1]["timeoutSeconds"] == 9


def test_options_wrong_from_the_first_install_nothing(app: App, api: Api) -> None:
    app.deploy(config=WRONG)
    assert app.status() == BlockedStatus(WRONG_MESSAGE)
    assert objects(api) == {}
    app.config = SHIM
    app.run(0, "config_changed")
    assert app.status() == ActiveStatus()


def test_option_added_by_refresh_has_its_default(app: App, api: Api) -> None:
    app.deploy()
    app.data["options"] = json.dumps({"log-level": "debug"})
    app.config = WRONG
    app.run(0, "upgrade_charm")
    assert {"--log-level=debug", "--delivery=copy"} <= set(arguments(api))


def test_options_become_arguments(app: App, api: Api) -> None:
    shim = {"shim-requests": "cpu=10m,memory=8Mi", "shim-limits": "none"}
    app.deploy(config={"delivery": "image-volume", "native-sidecars": "disabled", "log-level": "warn", **shim})
    expected = {"--delivery=image-volume", "--native-sidecars=disabled", "--log-level=warn", "--log-format=json"}
    expected |= {"--shim-requests=cpu=10m,memory=8Mi", "--shim-limits=none"}
    assert expected <= set(arguments(api))
    names = [word.split("=")[0] for word in arguments(api)]
    assert len(names) == len(set(names)), "the chart's own values are replaced"
    container = api.get(*WEBHOOK)["spec"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "SHIM_IMAGE", "value": SHIM["shim-image"]}]
    assert {"--self-signed", "--secret=istio-aux-webhook-certificate", "--service=istio-aux-webhook"} <= set(
        arguments(api)
    )


def test_failure_policy_applies_to_pods_that_would_hang(app: App, api: Api) -> None:
    app.deploy()
    assert {name.split(".")[0] for name, each in webhooks(api).items() if each["failurePolicy"] == "Fail"} == {
        "ended",
        "require-shim",
    }
    app.config = {"failure-policy": "ignore"}
    app.update(0)
    assert {each["failurePolicy"] for each in webhooks(api).values()} == {"Ignore"}


def test_namespaces_follow_the_option(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "team"})
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}
    app.config = {"namespaces": ""}
    app.update(0)
    assert api.labels("team") == {}
    assert api.get("Namespace", "team")["metadata"]["annotations"] == {}


def test_absent_namespace_is_reported_and_labelled_later(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "team,later,never"})
    assert app.status() == ActiveStatus("namespaces not found: later, never; they are labelled once they exist")
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}
    api.put("Namespace", "later")
    app.config["namespaces"] = "team,later"
    app.update(0)
    assert app.status() == ActiveStatus()
    assert api.labels("later") == {"istio-aux.io/injection": "enabled"}


def test_namespace_deleted_meanwhile_is_skipped(app: App, api: Api) -> None:
    api.put("Namespace", "a-gone")
    api.vanishing.add("a-gone")
    app.deploy(config={"namespaces": "a-gone,team"})
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}
    assert app.status() == ActiveStatus()


def test_rejected_label_keeps_no_other_namespace_from_its_own(app: App, api: Api) -> None:
    guarded = ("first", "other")
    for each in guarded:
        api.put("Namespace", each)
        api.refused.add(each)
    app.deploy(config={"namespaces": "first,other,team"})
    reasons = "; ".join(f"{each}: labels are owned by the platform" for each in guarded)
    assert app.status() == BlockedStatus(f"namespaces not labelled: {reasons}")
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}


def test_model_operators_are_kept_out_as_they_are_created(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "kubeflow"})
    kept_out = {name: each for name, each in webhooks(api).items() if name.startswith("out-of-mesh.")}
    assert len(kept_out) == 3
    for each in kept_out.values():
        assert each["clientConfig"]["service"]["path"] == "/mutate/out-of-mesh"
        assert each["failurePolicy"] == "Ignore"
    assert [name for _, name in api.writes if name.endswith("modeloperator")] == [], "nothing of Juju's is written"


def test_charms_that_joined_by_relation_reach_their_controller(app: App, api: Api) -> None:
    app.deploy()
    joined = webhooks(api)["in-mesh.relation.istio-aux.io"]
    assert joined["clientConfig"]["service"]["path"] == "/mutate/in-mesh"
    for label, value in {"sidecar.istio.io/inject": "true", "istio-aux.io/injection": "enabled"}.items():
        expression = {"key": label, "operator": "In", "values": [value]}
        assert expression in joined["objectSelector"]["matchExpressions"]


def test_named_applications_join_the_mesh(app: App, api: Api) -> None:
    app.deploy(config={"applications": "katib-controller, minio"})
    joins = webhooks(api)["in-mesh.named.istio-aux.io"]
    assert joins["clientConfig"]["service"]["path"] == "/mutate/in-mesh"
    namespaces = joins["namespaceSelector"]["matchExpressions"]
    assert {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["kubeflow"]} in namespaces
    assert {"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["ambient"]} in namespaces
    named = {"key": "app.kubernetes.io/name", "operator": "In", "values": ["katib-controller", "minio"]}
    assert named in joins["objectSelector"]["matchExpressions"]
    app.config = SHIM
    app.update(0)
    assert "in-mesh.named.istio-aux.io" not in webhooks(api)


def test_require_sidecar_exempts_the_charm_of_istiod(app: App, api: Api) -> None:
    injector = "istio-sidecar-injector"
    labels = {"app": "sidecar-injector", "app.kubernetes.io/instance": "pilot-of-ours-kubeflow"}
    service = {"clientConfig": {"service": {"name": "istiod", "namespace": "kubeflow"}}}
    webhook = {"name": "x", "sideEffects": "None", "admissionReviewVersions": ["v1"], **service}
    api.put("MutatingWebhookConfiguration", injector, metadata={"labels": labels}, webhooks=[webhook])
    others = {
        "by-helm": {"app": "sidecar-injector", "app.kubernetes.io/instance": "istio"},
        "by-hand": {"app": "sidecar-injector"},
        "no-injector": {"app": "guard", "app.kubernetes.io/instance": "guard-kubeflow"},
    }
    for name, other in others.items():
        api.put("MutatingWebhookConfiguration", name, metadata={"labels": other}, webhooks=[webhook])
    app.deploy(config={"require-sidecar": True})
    exempt = "istio, istio-k8s, istio-pilot, pilot-of-ours"
    assert app.status() == ActiveStatus(f"sidecars required, except for istiod and {exempt}")
    for name in (injector, *others):
        del api.objects["MutatingWebhookConfiguration", None, name]
    app.update(0)
    constraints = api.get("ValidatingAdmissionPolicy", "istio-aux-require-sidecar")["spec"]["matchConstraints"]
    namespaces, pods = (constraints[f"{kind}Selector"]["matchExpressions"] for kind in ("namespace", "object"))
    assert namespaces[0]["values"] == ["istio-system", "kube-system"], "the model is not exempt, even with istiod in it"
    applications = next(each["values"] for each in pods if each["key"] == "app.kubernetes.io/name")
    own = ["istio-aux", "istio-aux-webhook", "istio-aux-webhook-tenancy"]
    assert applications == [*own, *exempt.split(", ")], "remembered without the injector"
    app.config = {}
    app.update(0)
    assert objects(api) == INSTALLED


@pytest.mark.parametrize("option", ["require-sidecar", "tenancy"])
def test_option_that_needs_policies_is_reported_on_old_server(app: App, api: Api, option: str) -> None:
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        api.rejected[kind] = api_error(404, "the server could not find the requested resource")
    app.deploy(config={option: True, "namespaces": "team"})
    assert app.status() == BlockedStatus(f"{option}: needs Kubernetes 1.30 or newer; set it to false")
    assert api.labels("team"), "all the rest is done"
    assert not any(name.endswith("tenancy") for _, name in api.writes), "no account that nothing bounds"
    app.config = SHIM
    app.update(0)
    assert app.status() == ActiveStatus()
