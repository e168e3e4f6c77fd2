"""Renders the application's cluster objects: what the Helm chart renders, with Juju's names and the charm's options.

Pure but for reading the chart's objects, which `make manifests` writes.
"""

import base64
import copy
import dataclasses
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import jinja2
import yaml
from lightkube import codecs
from lightkube.codecs import AnyResource

import names
from application import Application
from mesh.selectors import Selector
from settings import Settings

_HERE = pathlib.Path(__file__).parent
_CHART = _HERE / "chart.yaml"
_CHARTS_WEBHOOK, _CHARTS_NAMESPACE = "juju-application-webhook", "juju-model"
"""Placeholders in the chart's objects, for the webhook's name and the namespace."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader in C, if it was built, is ten times as fast."""
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE / "templates"),
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # noqa: S701 - it is YAML, and values from outside go through tojson
)

Object = dict[str, Any]
Expression = dict[str, Any]
"""A requirement of a label selector."""


@dataclasses.dataclass(frozen=True)
class Image:
    """An image, and the registry's account if it takes one."""

    reference: str
    username: str = ""
    password: str = ""

    @property
    def docker_config(self) -> str:
        """Returns the content of a Secret to pull it with."""
        account = {"username": self.username, "password": self.password}
        return json.dumps({"auths": {self.reference.split("/", 1)[0]: account}})


@dataclasses.dataclass(frozen=True)
class Installation:
    """What is installed beside the options."""

    image: Image
    replicas: int
    failure_policy: Literal["Fail", "Ignore"]
    istio_applications: Sequence[str] = ()
    """Applications that run istiod, whose pods need no sidecar."""


def desired(application: Application, settings: Settings, installation: Installation) -> list[AnyResource]:
    """Renders all objects of an application, in the order in which they are written."""
    objects = [each for each in _chart(application) if settings.tenancy or not _is_tenancy(each)]
    for each in objects:
        if each["kind"] == "Deployment":
            _adjust_deployment(each, application, settings, installation)
        if each["kind"] == "MutatingWebhookConfiguration":
            each["webhooks"] = list(_webhooks(each["webhooks"], application, settings, installation))
    objects = sorted([*objects, *_secrets(application, installation)], key=_order)
    if settings.require_sidecar:
        objects += _require_sidecar(application, settings, installation.istio_applications)
    for each in objects:
        component = each["metadata"].get("labels", {}).get(names.COMPONENT)
        each["metadata"]["labels"] = {**application.labels, **({names.COMPONENT: component} if component else {})}
    return [codecs.from_dict(each) for each in objects]


def _chart(application: Application) -> list[Object]:
    text = _CHART.read_text().replace(_CHARTS_WEBHOOK, application.webhook)
    text = text.replace(_CHARTS_NAMESPACE, application.model)
    return [each for each in yaml.load_all(text, _LOADER) if each]


def _is_tenancy(thing: Object) -> bool:
    return str(thing["metadata"]["name"]).endswith("-tenancy")


_LAST = (
    "Deployment",
    "Secret",
    "PodDisruptionBudget",
    "Lease",
    "NetworkPolicy",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
)
"""Kinds that are written after all others: Deployments before what they own, and last what calls or rejects others."""


def _order(thing: Object) -> int:
    return _LAST.index(thing["kind"]) + 1 if thing["kind"] in _LAST else 0


def _secrets(application: Application, installation: Installation) -> Iterable[Object]:
    """Yields the Secret to pull the image with, if that takes an account."""
    if installation.image.username:
        yield {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": application.pull_secret, "namespace": application.model},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": base64.b64encode(installation.image.docker_config.encode()).decode()},
        }


def _adjust_deployment(
    deployment: Object, application: Application, settings: Settings, installation: Installation
) -> None:
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["image"] = installation.image.reference
    pod["imagePullSecrets"] = [{"name": application.pull_secret}] if installation.image.username else []
    options = {"--log-level": settings.log_level, "--log-format": "json"}
    if not _is_tenancy(deployment):
        deployment["spec"]["replicas"] = installation.replicas
        container["env"] = [{"name": "SHIM_IMAGE", "value": settings.shim_image}]
        options |= {"--delivery": settings.delivery, "--native-sidecars": settings.native_sidecars}
    kept = [word for word in container.get("args", []) if word.split("=")[0] not in options]
    container["args"] = [*kept, *(f"{option}={value}" for option, value in options.items())]


def _webhooks(
    webhooks: Iterable[Object], application: Application, settings: Settings, installation: Installation
) -> Iterable[Object]:
    """Yields the chart's webhooks, and those of the charm's own ways to opt in."""
    for webhook in webhooks:
        if webhook["name"].startswith(names.TENANTS_WEBHOOKS) and not settings.tenancy:
            continue
        yield _adjusted(webhook, application, settings, installation)
        if webhook["name"] in names.WEBHOOKS_OF_NAMESPACES and settings.namespace_selector:
            yield _adjusted(_by_selector(webhook, settings.namespace_selector), application, settings, installation)
        if webhook["name"] == names.ENDED_WEBHOOK:
            for own in _of_juju(webhook, application, settings):
                yield _adjusted(own, application, settings, installation)


def _adjusted(webhook: Object, application: Application, settings: Settings, installation: Installation) -> Object:
    adjusted = copy.deepcopy(webhook)
    if adjusted["failurePolicy"] == "Fail":
        adjusted["failurePolicy"] = installation.failure_policy
    if adjusted["name"] != names.ENDED_WEBHOOK:
        adjusted["timeoutSeconds"] = settings.webhook_timeout
    if adjusted["name"].startswith(names.WEBHOOKS_THAT_FORCE_A_SIDECAR):
        # A sidecar would take a pod out of the ambient mesh.
        adjusted["namespaceSelector"]["matchExpressions"].append(_not_in(names.AMBIENT_LABEL, names.AMBIENT))
    if not adjusted["name"].startswith(names.OUT_OF_MESH_WEBHOOK):
        adjusted["objectSelector"]["matchExpressions"] += _excluded_pods(application)
    return adjusted


def _by_selector(webhook: Object, selector: Selector) -> Object:
    """Returns the webhook for the namespaces of the option; it matches no pod that another way to opt in matches."""
    copied = copy.deepcopy(webhook)
    prefix, _, suffix = webhook["name"].partition(".")
    copied["name"] = f"{prefix}.selector.{suffix.removeprefix('namespace.')}"
    others = [each for each in webhook["namespaceSelector"]["matchExpressions"] if each["key"] != names.INJECTION_LABEL]
    copied["namespaceSelector"]["matchExpressions"] = [
        *others,
        _not_in(names.INJECTION_LABEL, names.ENABLED, names.DISABLED),
        _not_in(names.LEGACY_INJECTION_LABEL, names.ENABLED),
        *selector.expressions,
    ]
    for each in copied["objectSelector"]["matchExpressions"]:
        if each["key"] == names.INJECTION_LABEL:
            each["values"] = [names.ENABLED, names.DISABLED]
    return copied


def _of_juju(like: Object, application: Application, settings: Settings) -> Iterable[Object]:
    """Yields the webhooks that keep Juju's model operators out of the mesh, and let named applications join it.

    The API server calls a model operator, which is a webhook, too: it may not need mutual TLS.
    """
    model = {"key": names.NAMESPACE_NAME, "operator": "In", "values": [application.model]}
    for label in names.MODEL_OPERATOR_LABELS:
        name = f"{names.OUT_OF_MESH_WEBHOOK}.{label.rpartition('/')[2]}.istio-aux.io"
        yield _juju_webhook(like, name, "/mutate/out-of-mesh", [], [{"key": label, "operator": "Exists"}])
    # Charms that joined by the relation have the labels, and still need their controller before their proxy runs.
    joined = [
        {"key": label, "operator": "In", "values": [value]}
        for label, value in ((names.ISTIO_INJECT, "true"), (names.INJECTION_LABEL, names.ENABLED))
    ]
    yield _juju_webhook(like, "in-mesh.relation.istio-aux.io", "/mutate/in-mesh", [model], joined)
    if settings.applications:
        named = {"key": names.POD_APPLICATION, "operator": "In", "values": list(settings.applications)}
        yield _juju_webhook(like, "in-mesh.named.istio-aux.io", "/mutate/in-mesh", [model], [named])


def _juju_webhook(like: Object, name: str, path: str, namespaces: list[Expression], pods: list[Expression]) -> Object:
    webhook = {key: value for key, value in copy.deepcopy(like).items() if key != "matchConditions"}
    webhook |= {"name": name, "failurePolicy": "Ignore"}
    webhook["clientConfig"]["service"]["path"] = path
    webhook["rules"][0] |= {"resources": ["pods"], "operations": ["CREATE"]}
    # The API server counts an empty list, written again, as a change.
    webhook["namespaceSelector"] = {"matchExpressions": namespaces} if namespaces else {}
    webhook["objectSelector"] = {"matchExpressions": pods}
    return webhook


def _excluded_pods(application: Application) -> list[Expression]:
    """Returns the selector that excludes this application's pods, and Juju's model operators."""
    return [
        _not_in(names.POD_APPLICATION, *application.pod_names),
        *({"key": label, "operator": "DoesNotExist"} for label in names.MODEL_OPERATOR_LABELS),
    ]


def _require_sidecar(application: Application, settings: Settings, istio: Iterable[str]) -> list[Object]:
    selector = settings.namespace_selector
    excluded = _excluded_pods(application)
    excluded[0]["values"] += sorted(istio)
    text = _TEMPLATES.get_template("require-sidecar.yaml.j2").render(
        name=names.REQUIRE_SIDECAR,
        namespace=application.model,
        # Juju gives the account the name of its application.
        account=application.name,
        namespaces=[_not_in(names.NAMESPACE_NAME, names.ISTIO_SYSTEM, names.NEVER_INJECTED)],
        pods=[
            _not_in(names.INJECTION_LABEL, names.DISABLED),
            _not_in(names.ISTIO_INJECT, "false"),
            _not_in("app", "istiod"),
            *excluded,
        ],
        selected=selector.cel("variables.namespaceLabels") if selector else "false",
        disabled=names.DISABLED,
        injection=names.INJECTION_LABEL,
        legacy=names.LEGACY_INJECTION_LABEL,
        enabled=names.ENABLED,
        istio_injection=names.ISTIO_INJECTION_LABEL,
        istio_revision=names.ISTIO_REVISION_LABEL,
        istio_inject=names.ISTIO_INJECT,
        proxy=names.PROXY_CONTAINER,
    )
    return [each for each in yaml.load_all(text, _LOADER) if each]


def _not_in(label: str, *values: str) -> Expression:
    return {"key": label, "operator": "NotIn", "values": list(values)}
