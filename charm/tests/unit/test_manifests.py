"""The cluster objects, compared with those of the other ways to install."""

import base64
import copy
import dataclasses
import pathlib
from typing import Any

import pytest
import yaml
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration

from application import Application
from cluster import manifests, metadata
from cluster.tenancy import Image
from mesh.selectors import Selector
from settings import Settings
from tests.unit.test_settings import DEFAULTS

REPOSITORY = pathlib.Path(__file__).parents[3]
OVERLAYS = REPOSITORY / "deploy/overlays"
BASE = {
    each["metadata"]["name"]: each
    for each in yaml.safe_load_all((OVERLAYS / "self-signed/istio-aux.yaml").read_text())
    if each["kind"] == "MutatingWebhookConfiguration"
}

APPLICATION = Application("istio-aux", "kubeflow", "11111111-2222-4333-8444-555555555555")
SETTINGS = Settings.parse(DEFAULTS)
CONTROLLER = Image("registry.example/webhook:2", ("a-secret",))
TENANCY = SETTINGS.model_copy(update={"tenancy": True})
REQUIRED = SETTINGS.model_copy(update={"require_sidecar": True})
JUJU_EXCLUSIONS = [
    {"key": "operator.juju.is/name", "operator": "DoesNotExist"},
    {"key": "juju-modeloperator", "operator": "DoesNotExist"},
    {"key": "model.juju.is/disable-webhook", "operator": "DoesNotExist"},
]


def rendered(
    application: Application = APPLICATION, settings: Settings = SETTINGS, istio_charms: tuple[str, ...] = ()
) -> dict[str, dict[str, Any]]:
    made = manifests.desired(application, settings, ["CA one", "CA two\n"], istio_charms)
    return {type(each).__name__: each.to_dict() for each in made if type(each) is not MutatingWebhookConfiguration}


def configurations(application: Application = APPLICATION, settings: Settings = SETTINGS) -> dict[str, dict[str, Any]]:
    made = manifests.desired(application, settings, ["CA one", "CA two\n"], ())
    return {metadata.name(each): each.to_dict() for each in made if type(each) is MutatingWebhookConfiguration}


def entries(**changes: Any) -> list[dict[str, Any]]:
    made = configurations(settings=SETTINGS.model_copy(update=changes))
    return [entry for each in made.values() for entry in each["webhooks"]]


def test_entries_equal_the_charts_with_jujus_exclusions() -> None:
    expected = copy.deepcopy([entry for each in BASE.values() for entry in each["webhooks"]])
    for entry in expected:
        path = entry["clientConfig"]["service"]["path"]
        entry["clientConfig"] = {
            "service": {"name": "istio-aux-admission", "namespace": "kubeflow", "path": path, "port": 443},
            "caBundle": base64.b64encode(b"CA one\nCA two\n").decode(),
        }
        entry["objectSelector"]["matchExpressions"] += JUJU_EXCLUSIONS
    assert entries(tenancy=True) == expected
    assert entries() == [entry for entry in expected if "tenancy" not in entry["name"]]


def test_controllers_objects_equal_the_charts() -> None:
    """Under names that differ from the chart's wherever they can."""
    application = dataclasses.replace(APPLICATION, name="aux")
    made = {
        (each["kind"], each["metadata"]["name"]): each
        for each in (each.to_dict() for each in manifests.desired(application, TENANCY, [], [], CONTROLLER))
    }
    expected = component(application)
    deployment = expected["Deployment", "aux-tenancy"]["spec"]["template"]
    deployment["metadata"]["labels"]["istio.io/dataplane-mode"] = "none"
    deployment["spec"]["imagePullSecrets"] = [{"name": "a-secret"}]
    container = deployment["spec"]["containers"][0]
    container |= {
        "image": "registry.example/webhook:2",
        "args": ["--lease=aux-tenancy", "--log-level=info", "--log-format=json"],
    }
    assert {name: made[name] for name in expected} == expected
    assert {kind for kind, _ in made.keys() - expected.keys()} == {
        "Service",
        "PodDisruptionBudget",
        "MutatingWebhookConfiguration",
    }


def component(application: Application) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of deploy/overlays/tenancy, as they are called for an application."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in yaml.safe_load_all((OVERLAYS / "tenancy/tenancy.yaml").read_text()):
        of_cluster = "namespace" not in each["metadata"]
        each["metadata"]["labels"] = {**application.labels, "app.kubernetes.io/component": "tenancy"}
        name = application.tenancy_cluster_name if of_cluster else application.tenancy
        text = yaml.safe_dump(each).replace("namespace: istio-aux\n", f"namespace: {application.model}\n")
        if of_cluster:
            text = text.replace("name: istio-aux-tenancy\n  namespace", f"name: {application.tenancy}\n  namespace")
        found[each["kind"], name] = yaml.safe_load(text.replace("istio-aux-tenancy", name))
    assert len(found) == 9
    return found


def test_controllers_names_differ_from_jujus_own() -> None:
    application = dataclasses.replace(APPLICATION, model="istio-aux")
    jujus = f"{application.model}-{application.name}"
    made = manifests.desired(application, TENANCY, [], [], CONTROLLER)
    assert jujus not in {metadata.name(each) for each in made if "Cluster" in str(each.kind)}


def test_own_pods_are_excluded_under_another_name() -> None:
    other = dataclasses.replace(APPLICATION, name="aux")
    own = {"key": "app.kubernetes.io/name", "operator": "NotIn", "values": ["istio-aux", "aux"]}
    for each in configurations(other).values():
        for entry in each["webhooks"]:
            assert own in entry["objectSelector"]["matchExpressions"]


def test_failure_policy_applies_to_pods_that_lack_their_shim() -> None:
    policies = {entry["name"].split(".")[0]: entry["failurePolicy"] for entry in entries(failure_policy="ignore")}
    assert policies == {"startup-hold": "Ignore", "ended": "Ignore", "add-shim": "Ignore", "require-shim": "Ignore"}
    policies = {entry["name"].split(".")[0]: entry["failurePolicy"] for entry in entries()}
    assert policies == {"startup-hold": "Ignore", "ended": "Fail", "add-shim": "Ignore", "require-shim": "Fail"}


def test_timeout_is_the_options() -> None:
    times = {entry["name"]: entry["timeoutSeconds"] for entry in entries(webhook_timeout=30)}
    # A kubelet reports the statuses of all its pods one after the other.
    assert times.pop("ended.istio-aux.io") == 2
    assert set(times.values()) == {30}


def test_configurations_sort_before_and_after_istios() -> None:
    names = list(configurations())
    assert names == ["istio-aux-kubeflow", "zz-istio-aux-kubeflow"]
    for istios in ("istio-revision-tag-default", "istio-sidecar-injector"):
        assert names[0] < istios < names[1]


def test_objects_have_jujus_labels_except_its_name_label() -> None:
    settings = REQUIRED.model_copy(update={"tenancy": True})
    made = [each.to_dict() for each in manifests.desired(APPLICATION, settings, [], [], CONTROLLER)]
    assert len(made) == 15
    for each in made:
        labels = each["metadata"]["labels"]
        assert labels["app.juju.is/created-by"] == "istio-aux"
        assert labels["model.juju.is/name"] == "kubeflow"
        assert labels["model.juju.is/id"] == APPLICATION.model_uuid
        assert labels["app.kubernetes.io/managed-by"] == "juju"
        assert "app.kubernetes.io/name" not in labels


def test_service_leads_to_the_applications_pods() -> None:
    service = rendered()["Service"]
    assert service["metadata"]["name"] not in ("istio-aux", "istio-aux-endpoints")
    assert service["metadata"]["namespace"] == "kubeflow"
    assert service["spec"] == {
        "selector": {"app.kubernetes.io/name": "istio-aux", "istio-aux.io/serving": "true"},
        "ports": [{"name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP"}],
    }


def test_sidecars_are_required_only_on_demand() -> None:
    assert set(rendered()) == {"Service", "PodDisruptionBudget"}


def test_policy_is_bound_and_denies() -> None:
    made = rendered(settings=REQUIRED)
    binding = made["ValidatingAdmissionPolicyBinding"]["spec"]
    assert binding == {"policyName": "istio-aux-kubeflow", "validationActions": ["Deny"]}
    policy = made["ValidatingAdmissionPolicy"]["spec"]
    assert policy["failurePolicy"] == "Fail"
    installed = next(each["expression"] for each in policy["variables"] if each["name"] == "installed")
    assert "authorizer.serviceAccount('kubeflow', 'istio-aux')" in installed, "without the application it allows all"
    assert policy["validations"][0]["reason"] == "Forbidden"
    assert "Istio's injector did not add it" in policy["validations"][0]["message"]
    assert "\n" not in policy["validations"][0]["message"].strip()


@pytest.mark.parametrize("expression", [
    {"key": "istio-aux.io/injection", "operator": "NotIn", "values": ["disabled"]},
    {"key": "sidecar.istio.io/inject", "operator": "NotIn", "values": ["false"]},
    {"key": "app", "operator": "NotIn", "values": ["istiod"]},
    {"key": "app.kubernetes.io/name", "operator": "NotIn", "values": ["istio-aux", "pilot"]},
    *JUJU_EXCLUSIONS,
])  # fmt: skip
def test_policy_exempts_pods(expression: dict[str, Any]) -> None:
    made = rendered(settings=REQUIRED, istio_charms=("pilot",))
    constraints = made["ValidatingAdmissionPolicy"]["spec"]["matchConstraints"]
    assert expression in constraints["objectSelector"]["matchExpressions"]


def test_disruption_leaves_all_but_one_unit() -> None:
    budget = rendered()["PodDisruptionBudget"]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": {"app.kubernetes.io/name": "istio-aux"}}}


def test_selected_namespaces_have_entries_without_overlap() -> None:
    selector = Selector.parse("app.kubernetes.io/part-of=kubeflow-profile")
    made = entries(namespace_selector=selector)
    without = [entry["name"] for entry in entries()]
    selected = [entry for entry in made if entry["name"] not in without]
    assert len(made) == len(without) + len(selected)
    assert [entry["name"] for entry in selected] == [
        f"{name}.selector.istio-aux.io" for name in ("startup-hold", "add-shim", "require-shim")
    ]
    for entry in selected:
        namespaces = entry["namespaceSelector"]["matchExpressions"]
        assert {"key": "istio-aux.io/injection", "operator": "NotIn", "values": ["enabled", "disabled"]} in namespaces
        assert {"key": "io.datastrophic/istio-aux", "operator": "NotIn", "values": ["enabled"]} in namespaces
        assert namespaces[-1]["values"] == ["kubeflow-profile"]
        pods = entry["objectSelector"]["matchExpressions"]
        assert pods[0] == {"key": "istio-aux.io/injection", "operator": "NotIn", "values": ["enabled", "disabled"]}


def test_selected_namespaces_may_join_the_mesh() -> None:
    selector = Selector.parse("app.kubernetes.io/part-of=kubeflow-profile")
    made = {entry["name"]: entry for entry in entries(namespace_selector=selector, tenancy=True)}
    labelled, selected = (made[f"mesh.{way}tenancy.istio-aux.io"] for way in ("", "selector."))
    selectors = [entry["namespaceSelector"]["matchExpressions"] for entry in (labelled, selected)]
    assert {"key": "istio-aux.io/injection", "operator": "In", "values": ["enabled"]} in selectors[0]
    assert {"key": "istio-aux.io/injection", "operator": "NotIn", "values": ["enabled", "disabled"]} in selectors[1]
    assert selectors[1][-1]["values"] == ["kubeflow-profile"]
    for entry in (labelled, selected):
        del entry["name"], entry["namespaceSelector"]
    assert labelled == selected


def test_policys_expressions_use_all_its_variables() -> None:
    made = rendered(settings=REQUIRED)
    policy = made["ValidatingAdmissionPolicy"]["spec"]
    names = {variable["name"] for variable in policy["variables"]}
    text = " ".join(each["expression"] for each in (*policy["variables"], *policy["validations"]))
    used = {
        word.split("variables.")[1].strip("()[]") for word in text.replace("[", " ").split() if "variables." in word
    }
    assert {word.split(".")[0].rstrip(",)") for word in used} == names
