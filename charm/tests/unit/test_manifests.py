"""The cluster objects, compared with what the chart renders."""

import base64
import dataclasses
import json
import pathlib
import re
from typing import Any

import pytest
import yaml
from lightkube.codecs import AnyResource

from application import Application
from cluster import manifests, metadata
from cluster.client import KINDS
from cluster.manifests import Image, Installation
from mesh.selectors import Selector
from settings import Settings
from tests.unit.test_settings import DEFAULTS

CHART = pathlib.Path(manifests.__file__).with_name("chart.yaml").read_text()
APPLICATION = Application("istio-aux", "kubeflow", "11111111-2222-4333-8444-555555555555")
SETTINGS = Settings.parse({**DEFAULTS, "shim-image": "registry.example/shim:1"})
IMAGE = Image("registry.example/webhook:1")
JUJU_EXCLUSIONS = [
    {
        "key": "app.kubernetes.io/name",
        "operator": "NotIn",
        "values": ["istio-aux", "istio-aux-webhook", "istio-aux-webhook-tenancy"],
    },
    {"key": "operator.juju.is/name", "operator": "DoesNotExist"},
    {"key": "juju-modeloperator", "operator": "DoesNotExist"},
    {"key": "model.juju.is/disable-webhook", "operator": "DoesNotExist"},
]
NOT_AMBIENT = {"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["ambient"]}
JUJUS_OWN = ("in-mesh.", "out-of-mesh.")


def desired(application: Application = APPLICATION, **changes: Any) -> list[AnyResource]:
    settings = SETTINGS.model_copy(update=changes)
    return manifests.desired(Installation(application, settings, IMAGE, 2, "Fail", ("pilot",)))


def by_name(application: Application = APPLICATION, **changes: Any) -> dict[tuple[str, str], dict[str, Any]]:
    made = (each.to_dict() for each in desired(application, **changes))
    return {(each["kind"], each["metadata"]["name"]): each for each in made}


def chart(application: Application = APPLICATION) -> dict[tuple[str, str], dict[str, Any]]:
    text = CHART.replace("juju-application-webhook", application.webhook).replace("juju-model", application.model)
    made = (each for each in yaml.safe_load_all(text) if each)
    return {(each["kind"], each["metadata"]["name"]): each for each in made}


def webhooks_of(objects: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    both = [objects["MutatingWebhookConfiguration", name] for name in ("istio-aux", "zz-istio-aux")]
    return [webhook for each in both for webhook in each["webhooks"]]


def webhooks(**changes: Any) -> list[dict[str, Any]]:
    return webhooks_of(by_name(**changes))


def test_application_may_have_the_name_of_a_placeholder() -> None:
    application = dataclasses.replace(APPLICATION, name="juju-model")
    namespaced = [each for each in by_name(application).values() if "namespace" in each["metadata"]]
    assert {each["metadata"]["namespace"] for each in namespaced} == {"kubeflow"}
    assert all(each["metadata"]["name"].startswith("juju-model-webhook") for each in namespaced)


@pytest.mark.parametrize("model", ["2024", "010", "on", "null"])
def test_model_may_have_a_name_that_yaml_reads_as_another_type(model: str) -> None:
    made = by_name(dataclasses.replace(APPLICATION, model=model), require_sidecar=True)
    assert {each["metadata"].get("namespace") for each in made.values()} == {None, model}
    assert made["ClusterRoleBinding", "istio-aux"]["subjects"][0]["namespace"] == model
    assert {each["clientConfig"]["service"]["namespace"] for each in webhooks_of(made)} == {model}


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("registry.example/charm/webhook:1", "registry.example"),
        ("registry:5000/webhook@sha256:" + "1" * 64, "registry:5000"),
        ("docker.io/me/webhook", "docker.io"),
        ("localhost/webhook:1", "localhost"),
        ("me/webhook:1", "https://index.docker.io/v1/"),
        ("webhook:1.2", "https://index.docker.io/v1/"),
    ],
)
def test_pull_secret_has_the_registry_that_the_kubelet_looks_for(image: str, registry: str) -> None:
    installation = Installation(APPLICATION, SETTINGS, Image(image, "me", "secret"), 2, "Fail")
    made = {metadata.name(each): each.to_dict() for each in manifests.desired(installation)}
    config = json.loads(base64.b64decode(made["istio-aux-webhook-image"]["data"][".dockerconfigjson"]))
    assert config == {"auths": {registry: {"username": "me", "password": "secret"}}}


def test_webhooks_equal_the_charts_with_jujus_exclusions() -> None:
    expected = webhooks_of(chart())
    for webhook in expected:
        if webhook["name"].startswith(("mesh.", "startup-hold.")):
            for selector in ("namespaceSelector", "objectSelector"):
                webhook[selector]["matchExpressions"].append(NOT_AMBIENT)
        webhook["objectSelector"]["matchExpressions"] += JUJU_EXCLUSIONS
    assert [each for each in webhooks(tenancy=True) if not each["name"].startswith(JUJUS_OWN)] == expected
    without = [webhook for webhook in expected if "tenancy" not in webhook["name"]]
    assert [each for each in webhooks() if not each["name"].startswith(JUJUS_OWN)] == without


def test_jujus_own_webhooks_are_called_for_new_pods_only() -> None:
    made = webhooks(applications=("katib",))
    assert len({each["name"] for each in made}) == len(made)
    model = [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["kubeflow"]}]
    everywhere = [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]
    joined = [
        {"key": "sidecar.istio.io/inject", "operator": "In", "values": ["true"]},
        {"key": "istio-aux.io/injection", "operator": "In", "values": ["enabled"]},
    ]
    named = [{"key": "app.kubernetes.io/name", "operator": "In", "values": ["katib"]}]
    expected = {
        "in-mesh.relation.istio-aux.io": (model, joined),
        "in-mesh.named.istio-aux.io": (model, named),
        **{
            f"out-of-mesh.{label.partition('/')[2] or label}.istio-aux.io": (
                everywhere,
                [{"key": label, "operator": "Exists"}],
            )
            for label in ("operator.juju.is/name", "juju-modeloperator", "model.juju.is/disable-webhook")
        },
    }
    own = {each["name"]: each for each in made if each["name"].startswith(JUJUS_OWN)}
    assert own.keys() == expected.keys()
    for name, each in own.items():
        namespaces, pods = expected[name]
        excluded = [] if name.startswith("out-of-mesh.") else JUJU_EXCLUSIONS
        assert each["namespaceSelector"] == {"matchExpressions": [*namespaces, NOT_AMBIENT]}, name
        assert each["objectSelector"] == {"matchExpressions": [*pods, NOT_AMBIENT, *excluded]}, name
        (rule,) = each["rules"]
        of_pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
        assert rule.items() >= of_pods.items(), name
        assert each["failurePolicy"] == "Ignore"
        assert "matchConditions" not in each
        assert each["clientConfig"]["service"]["path"] == f"/mutate/{name.partition('.')[0]}"


@pytest.mark.parametrize("selector", ["namespaceSelector", "objectSelector"])
def test_ambient_pods_have_only_webhooks_of_proxies_and_tokens(selector: str) -> None:
    made = webhooks(tenancy=True, applications=("katib",), namespace_selector=Selector.parse("a=b"))
    called = {each["name"].partition(".")[0] for each in made if NOT_AMBIENT not in each[selector]["matchExpressions"]}
    assert called == {"ended", "add-shim", "require-shim", "pipelines-token"}


def without_options(thing: dict[str, Any]) -> set[str]:
    """Takes from an object what the options decide. Returns the names of a Deployment's arguments."""
    del thing["metadata"]["labels"]
    if thing["kind"] != "Deployment":
        return set()
    pod = thing["spec"]["template"]["spec"]
    container = pod["containers"][0]
    for part, field in ((pod, "imagePullSecrets"), (container, "image"), (container, "env")):
        part.pop(field, None)
    return {word.split("=")[0] for word in container.pop("args", [])}


def test_other_objects_equal_the_charts_but_for_options() -> None:
    """Under names that differ from the chart's wherever they can."""
    application = dataclasses.replace(APPLICATION, name="aux")
    made, expected = by_name(application, tenancy=True), chart(application)
    assert made.keys() == expected.keys()
    for name, each in expected.items():
        if name[0] != "MutatingWebhookConfiguration":
            assert without_options(each) <= without_options(made[name])
            assert made[name] == each, name


def test_service_leads_to_the_webhooks_pods_only() -> None:
    made = by_name()
    selector = made["Service", "istio-aux-webhook"]["spec"]["selector"]
    labels = made["Deployment", "istio-aux-webhook"]["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert selector != {"app.kubernetes.io/name": "istio-aux"}, "those are the units"
    assert labels["sidecar.istio.io/inject"] == "false"


def test_webhooks_account_has_the_rights_of_helms() -> None:
    made = by_name()
    rules = [*made["Role", "istio-aux-webhook"]["rules"], *made["ClusterRole", "istio-aux"]["rules"]]
    assert [(rule["resources"], rule["resourceNames"], rule["verbs"]) for rule in rules] == [
        (["secrets"], ["istio-aux-webhook-certificate"], ["get", "patch"]),
        (["mutatingwebhookconfigurations"], ["istio-aux", "zz-istio-aux"], ["get", "patch", "watch"]),
    ]


def test_account_is_bounded_before_it_has_rights_and_after() -> None:
    written = [str(each.kind) for each in desired(tenancy=True)]
    for bound in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        for right in ("ClusterRoleBinding", "RoleBinding"):
            assert max(i for i, kind in enumerate(written) if kind == bound) < written.index(right)
            deleted = [kind.__name__ for kind in KINDS]
            assert deleted.index(right) < deleted.index(bound)


def test_what_calls_and_rejects_is_written_last() -> None:
    kinds = [str(each.kind) for each in desired(require_sidecar=True)]
    configuration = kinds.index("MutatingWebhookConfiguration")
    assert all(kinds.index(kind) < configuration for kind in ("Deployment", "Service", "Secret", "ClusterRoleBinding"))
    of_its_account = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    assert all(kinds.index(kind) < kinds.index("Deployment") for kind in of_its_account)


def test_timeout_is_the_options() -> None:
    times = {webhook["name"]: webhook["timeoutSeconds"] for webhook in webhooks(webhook_timeout=30)}
    # A kubelet reports the statuses of all its pods one after the other.
    assert times.pop("ended.istio-aux.io") == 2
    assert set(times.values()) == {30}


def test_objects_have_jujus_labels_except_its_name_label() -> None:
    made = by_name(require_sidecar=True, tenancy=True)
    assert len(made) > 20
    component = "app.kubernetes.io/component"
    for key, each in chart().items():
        assert made[key]["metadata"]["labels"].get(component) == each["metadata"]["labels"].get(component), key
    for each in made.values():
        labels = each["metadata"]["labels"]
        assert labels["app.juju.is/created-by"] == "istio-aux"
        assert labels["model.juju.is/name"] == "kubeflow"
        assert labels["model.juju.is/id"] == APPLICATION.model_uuid
        assert labels["app.kubernetes.io/managed-by"] == "juju"
        assert "app.kubernetes.io/name" not in labels


@pytest.mark.parametrize(("selector", "selects"), [(None, "(false)"), ("a=b", None)])
def test_policy_knows_the_namespaces_of_the_option(selector: str | None, selects: str | None) -> None:
    parsed = Selector.parse(selector) if selector else None
    made = by_name(require_sidecar=True, namespace_selector=parsed)
    text = str(made["ValidatingAdmissionPolicy", "istio-aux-require-sidecar"]["spec"])
    assert (selects or f"({parsed.cel('variables.namespaceLabels') if parsed else ''})") in text
    assert "juju-selector" not in text


def test_names_differ_from_jujus_own() -> None:
    made = {metadata.name(each) for each in desired(tenancy=True) if metadata.namespace(each)}
    assert not made & {"istio-aux", "istio-aux-endpoints", "istio-aux-secret", "modeloperator"}


def policy() -> dict[str, Any]:
    return by_name(require_sidecar=True)["ValidatingAdmissionPolicy", "istio-aux-require-sidecar"]["spec"]


def test_policy_is_bound_and_denies() -> None:
    binding = by_name(require_sidecar=True)["ValidatingAdmissionPolicyBinding", "istio-aux-require-sidecar"]["spec"]
    assert binding == {"policyName": "istio-aux-require-sidecar", "validationActions": ["Deny"]}
    assert policy()["failurePolicy"] == "Fail"
    installed = next(each["expression"] for each in policy()["variables"] if each["name"] == "installed")
    assert "authorizer.serviceAccount('kubeflow', 'istio-aux')" in installed, "without the application it allows all"
    assert policy()["validations"][0]["reason"] == "Forbidden"
    assert "Istio's injector did not add it" in policy()["validations"][0]["message"]
    assert "\n" not in policy()["validations"][0]["message"].strip()


@pytest.mark.parametrize("expression", [
    {"key": "istio-aux.io/injection", "operator": "NotIn", "values": ["disabled"]},
    {"key": "sidecar.istio.io/inject", "operator": "NotIn", "values": ["false"]},
    {"key": "app", "operator": "NotIn", "values": ["istiod"]},
    {**JUJU_EXCLUSIONS[0], "values": ["istio-aux", "istio-aux-webhook", "istio-aux-webhook-tenancy", "pilot"]},
    *JUJU_EXCLUSIONS[1:],
])  # fmt: skip
def test_policy_exempts_pods(expression: dict[str, Any]) -> None:
    assert expression in policy()["matchConstraints"]["objectSelector"]["matchExpressions"]


@pytest.mark.parametrize("selector", ["namespaceSelector", "objectSelector"])
def test_policy_exempts_the_ambient_mesh(selector: str) -> None:
    assert NOT_AMBIENT in policy()["matchConstraints"][selector]["matchExpressions"]


def test_selected_namespaces_have_webhooks_without_overlap() -> None:
    selector = Selector.parse("app.kubernetes.io/part-of=kubeflow-profile")
    made = webhooks(namespace_selector=selector)
    without = [webhook["name"] for webhook in webhooks()]
    selected = [webhook for webhook in made if webhook["name"] not in without]
    assert [webhook for webhook in made if webhook["name"] in without] == webhooks()
    assert [webhook["name"] for webhook in selected] == [
        f"{name}.selector.istio-aux.io" for name in ("startup-hold", "add-shim", "require-shim")
    ]
    for webhook in selected:
        namespaces = webhook["namespaceSelector"]["matchExpressions"]
        assert {"key": "istio-aux.io/injection", "operator": "NotIn", "values": ["enabled", "disabled"]} in namespaces
        assert {"key": "io.datastrophic/istio-aux", "operator": "NotIn", "values": ["enabled"]} in namespaces
        assert selector
        assert selector.expressions[0] in namespaces
        pods = webhook["objectSelector"]["matchExpressions"]
        assert pods[0] == {"key": "istio-aux.io/injection", "operator": "NotIn", "values": ["enabled", "disabled"]}


def test_selected_namespaces_may_join_the_mesh() -> None:
    selector = Selector.parse("app.kubernetes.io/part-of=kubeflow-profile")
    made = {webhook["name"]: webhook for webhook in webhooks(namespace_selector=selector, tenancy=True)}
    webhook = made["mesh.selector.tenancy.istio-aux.io"]
    selected = webhook["namespaceSelector"]["matchExpressions"]
    assert {"key": "istio-aux.io/mesh", "operator": "In", "values": ["run-to-completion"]} in selected
    assert {"key": "istio-aux.io/injection", "operator": "NotIn", "values": ["enabled", "disabled"]} in selected
    opted_out = {"key": "istio-aux.io/injection", "operator": "NotIn", "values": ["disabled"]}
    assert opted_out in webhook["objectSelector"]["matchExpressions"]


def test_policys_expressions_use_all_its_variables() -> None:
    names = {variable["name"] for variable in policy()["variables"]}
    text = " ".join(each["expression"] for each in (*policy()["variables"], *policy()["validations"]))
    assert set(re.findall(r"variables\.(\w+)", text)) == names
