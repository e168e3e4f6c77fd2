"""Renders the application's cluster objects: what the Helm chart renders, with Juju's names and the charm's options.

Pure but for reading chart.yaml, which `make manifests` writes, and require-sidecar.yaml.
"""

import base64
import copy
import dataclasses
import json
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import yaml
from lightkube import codecs
from lightkube.codecs import AnyResource

import names
from application import Application
from mesh.selectors import Selector
from settings import Settings

_HERE = pathlib.Path(__file__).parent
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader in C, if it was built, is ten times as fast."""

Object = dict[str, Any]
Expression = dict[str, Any]
"""A requirement of a label selector."""


@dataclasses.dataclass(frozen=True)
class Image:
    """An image, and the registry's account if it takes one."""

    reference: str
    username: str = ""
    password: str = ""


@dataclasses.dataclass(frozen=True)
class Installation:
    """What is installed."""

    application: Application
    settings: Settings
    image: Image
    replicas: int
    failure_policy: Literal["Fail", "Ignore"]
    istio_applications: Sequence[str] = ()
    """Applications that run istiod, whose pods need no sidecar."""
    offers_shim: bool = True
    """Whether every replica that may answer has the shim's image."""

    @property
    def selector(self) -> Selector | None:
        """Returns the selector in force."""
        return self.settings.selector if self.offers_shim else None


def desired(installation: Installation) -> list[AnyResource]:
    """Renders all objects of an application, in the order in which they are written."""
    settings = installation.settings
    objects = [each for each in _read("chart.yaml", installation) if settings.tenancy or not _is_tenancy(each)]
    for each in objects:
        if each["kind"] == "Deployment":
            _adjust_deployment(each, installation)
        if each["kind"] == "MutatingWebhookConfiguration":
            each["webhooks"] = list(_webhooks(each["webhooks"], installation))
            for webhook in each["webhooks"]:
                _adjust_webhook(webhook, installation)
    if installation.image.username:
        objects.append(_pull_secret(installation))
    objects.sort(key=_order)
    if settings.require_sidecar:
        objects += _require_sidecar(installation)
    for each in objects:
        component = each["metadata"].get("labels", {}).get(names.COMPONENT)
        labels = installation.application.labels
        each["metadata"]["labels"] = {**labels, names.COMPONENT: component} if component else labels
    return [codecs.from_dict(each) for each in objects]


def _read(file: str, installation: Installation) -> list[Object]:
    """Reads the objects of a file, with values for its placeholders."""
    selector = installation.selector
    values = {
        "juju-application": installation.application.name,
        "juju-model": installation.application.model,
        "juju-selector": selector.cel("variables.namespaceLabels") if selector else "false",
    }
    # In JSON a model's name stays a string. YAML would read 2024 as a number, and on as a boolean.
    text = json.dumps(list(yaml.load_all((_HERE / file).read_text(), _LOADER)))
    # In one pass: an application may be called juju-model.
    text = re.sub("|".join(values), lambda found: json.dumps(values[found[0]])[1:-1], text)
    return [each for each in json.loads(text) if each]


def _is_tenancy(thing: Object) -> bool:
    return str(thing["metadata"]["name"]).endswith(("-tenancy", "istio-aux-pipelines"))


_LAST = (
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ClusterRoleBinding",
    "RoleBinding",
    "Deployment",
    "Secret",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "MutatingWebhookConfiguration",
)
"""Kinds that are written after all others: what bounds an account before its rights, Deployments before what they own,
and last what calls others."""


def _order(thing: Object) -> int:
    return _LAST.index(thing["kind"]) + 1 if thing["kind"] in _LAST else 0


def _pull_secret(installation: Installation) -> Object:
    """Returns the Secret to pull the image with."""
    application, image = installation.application, installation.image
    # The kubelet takes an image without a host for Docker Hub's: isDefaultRegistryMatch in Kubernetes' keyring.go.
    host = re.match(r"(localhost|[^/]*[.:][^/]*)(?=/)", image.reference)
    registry = host[0] if host else "https://index.docker.io/v1/"
    config = json.dumps({"auths": {registry: {"username": image.username, "password": image.password}}})
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": application.pull_secret, "namespace": application.model},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(config.encode()).decode()},
    }


def _adjust_deployment(deployment: Object, installation: Installation) -> None:
    settings, image = installation.settings, installation.image
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["image"] = image.reference
    pod["imagePullSecrets"] = [{"name": installation.application.pull_secret}] if image.username else []
    options = {"--log-level": settings.log_level, "--log-format": "json"}
    if not _is_tenancy(deployment):
        deployment["spec"]["replicas"] = installation.replicas
        container["env"] = [{"name": "SHIM_IMAGE", "value": settings.shim_image}]
        options |= {"--delivery": settings.delivery, "--native-sidecars": settings.native_sidecars}
        options |= {"--shim-requests": settings.shim_requests, "--shim-limits": settings.shim_limits}
    kept = [word for word in container.get("args", []) if word.split("=")[0] not in options]
    container["args"] = [*kept, *(f"{option}={value}" for option, value in options.items())]


def _webhooks(webhooks: Iterable[Object], installation: Installation) -> Iterable[Object]:
    """Yields the chart's webhooks, and those of the charm's own ways to opt in."""
    settings = installation.settings
    for webhook in webhooks:
        if webhook["name"].startswith(names.TENANTS_WEBHOOKS) and not settings.tenancy:
            continue
        if webhook["name"].startswith(names.WEBHOOKS_OF_THE_SHIM) and not installation.offers_shim:
            continue
        yield webhook
        if webhook["name"] in names.WEBHOOKS_OF_NAMESPACES and installation.selector:
            yield _by_selector(webhook, installation.selector)
        if webhook["name"] == names.ENDED_WEBHOOK:
            yield from _of_juju(webhook, installation.application, settings)


def _adjust_webhook(webhook: Object, installation: Installation) -> None:
    if webhook["failurePolicy"] == "Fail":
        webhook["failurePolicy"] = installation.failure_policy
    if webhook["name"] != names.ENDED_WEBHOOK:
        webhook["timeoutSeconds"] = installation.settings.webhook_timeout
    if webhook["name"].startswith(names.WEBHOOKS_BEFORE_A_SIDECAR):
        # A sidecar would take a pod out of the ambient mesh.
        for selector in ("namespaceSelector", "objectSelector"):
            webhook[selector]["matchExpressions"].append(_not_in(names.AMBIENT_LABEL, names.AMBIENT))
    if not webhook["name"].startswith(names.OUT_OF_MESH_WEBHOOK):
        webhook["objectSelector"]["matchExpressions"] += _excluded_pods(installation.application)


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
        # Of the webhooks for the mesh, none is for pods that opt in themselves.
        if each["key"] == names.INJECTION_LABEL and prefix != "mesh":
            each["values"] = [names.ENABLED, names.DISABLED]
    return copied


def _of_juju(like: Object, application: Application, settings: Settings) -> Iterable[Object]:
    """Yields the webhooks that keep Juju's model operators out of the mesh, and let named applications join it.

    The API server calls a model operator, which is a webhook, too: it may not need mutual TLS.
    """
    model = {"key": names.NAMESPACE_NAME, "operator": "In", "values": [application.model]}
    everywhere = _not_in(names.NAMESPACE_NAME, names.NEVER_INJECTED)
    for label in names.MODEL_OPERATOR_LABELS:
        name = f"{names.OUT_OF_MESH_WEBHOOK}.{label.rpartition('/')[2]}.istio-aux.io"
        yield _juju_webhook(like, name, "/mutate/out-of-mesh", [everywhere], [{"key": label, "operator": "Exists"}])
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
    webhook["namespaceSelector"] = {"matchExpressions": namespaces}
    webhook["objectSelector"] = {"matchExpressions": pods}
    return webhook


def _excluded_pods(application: Application) -> list[Expression]:
    """Returns the selector that excludes this application's pods, and Juju's model operators."""
    return [
        _not_in(names.POD_APPLICATION, *application.pod_names),
        *({"key": label, "operator": "DoesNotExist"} for label in names.MODEL_OPERATOR_LABELS),
    ]


def _require_sidecar(installation: Installation) -> list[Object]:
    excluded = _excluded_pods(installation.application)
    excluded[0]["values"] += sorted(installation.istio_applications)
    policy, binding = _read("require-sidecar.yaml", installation)
    policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"] += excluded
    return [policy, binding]


def _not_in(label: str, *values: str) -> Expression:
    return {"key": label, "operator": "NotIn", "values": list(values)}
