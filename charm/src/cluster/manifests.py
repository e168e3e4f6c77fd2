"""Renders the manifests of the charm's cluster objects: pure but for reading the templates."""

import base64
import pathlib
from collections.abc import Iterable
from typing import Any

import jinja2
import yaml
from lightkube import codecs
from lightkube.codecs import AnyResource

import names
from application import Application
from cluster.tenancy import Image
from mesh.selectors import Selector
from settings import Settings
from webhook import ADMISSION_PORT, HEALTH_PORT, USER

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader in C, if it was built, is ten times as fast."""

Expression = dict[str, Any]
"""A requirement of a label selector."""

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # noqa: S701 - it is YAML, and values from outside go through tojson
)


def desired(
    application: Application,
    settings: Settings,
    ca_certificates: Iterable[str],
    istio_charms: Iterable[str],
    controller: Image | None = None,
) -> list[AnyResource]:
    """Renders all objects of an application, in the order in which they are written.

    `controller` is the image of the tenancy controller; None for none.
    """
    objects = [*_service(application), *_webhook_configurations(application, settings, ca_certificates)]
    if settings.require_sidecar:
        objects += _require_sidecar(application, settings, istio_charms)
    if controller:
        objects += _tenancy(application, settings, controller)
    return objects


def _service(application: Application) -> list[AnyResource]:
    pod_labels = {names.POD_APPLICATION: application.name}
    return _render(
        "service",
        application,
        port=ADMISSION_PORT,
        pod_labels=pod_labels,
        serving_labels={**pod_labels, names.SERVING_LABEL: "true"},
    )


def _webhook_configurations(
    application: Application, settings: Settings, ca_certificates: Iterable[str]
) -> list[AnyResource]:
    bundle = "".join(f"{certificate.strip()}\n" for certificate in ca_certificates)
    return _render(
        "webhook-configuration",
        application,
        timeout=settings.webhook_timeout,
        ca_bundle=base64.b64encode(bundle.encode()).decode(),
        configurations={
            application.cluster_name: list(_entries_before_istio(settings)),
            application.shim_cluster_name: list(_entries_after_istio(settings)),
        },
        never=[_not_in("kubernetes.io/metadata.name", names.NEVER_INJECTED)],
        excluded=_excluded_pods(application),
    )


def _require_sidecar(application: Application, settings: Settings, istio_charms: Iterable[str]) -> list[AnyResource]:
    selector = settings.namespace_selector
    return _render(
        "require-sidecar",
        application,
        # Juju gives the account the name of its application.
        account=application.name,
        namespaces=[_not_in("kubernetes.io/metadata.name", names.ISTIO_SYSTEM, names.NEVER_INJECTED)],
        pods=[
            _not_in(names.INJECTION_LABEL, names.DISABLED),
            _not_in(names.ISTIO_INJECT, "false"),
            _not_in("app", "istiod"),
            *_excluded_pods(application, istio_charms),
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


def _tenancy(application: Application, settings: Settings, image: Image) -> list[AnyResource]:
    pod_labels = {names.POD_APPLICATION: application.tenancy}
    return _render(
        "tenancy",
        application,
        labels={**application.labels, "app.kubernetes.io/component": "tenancy"},
        tenancy=application.tenancy,
        tenancy_cluster_name=application.tenancy_cluster_name,
        pod_labels=pod_labels,
        excluded_from_mesh={**pod_labels, names.ISTIO_INJECT: "false", names.AMBIENT_LABEL: names.NOT_AMBIENT},
        image=image.reference,
        pull_secrets=[{"name": name} for name in image.pull_secrets],
        user=USER,
        lease=f"--lease={application.tenancy}",
        log_level=f"--log-level={settings.log_level}",
        health_port=HEALTH_PORT,
    )


def _render(template: str, application: Application, **values: object) -> list[AnyResource]:
    common = {
        "cluster_name": application.cluster_name,
        "service": application.service,
        "namespace": application.model,
        "labels": application.labels,
    }
    text = _TEMPLATES.get_template(f"{template}.yaml.j2").render({**common, **values})
    return [codecs.from_dict(each) for each in yaml.load_all(text, _LOADER) if each]


def _excluded_pods(application: Application, others: Iterable[str] = ()) -> list[Expression]:
    """Returns the selector that excludes this application's pods, those of `others`, and Juju's model operator."""
    applications = dict.fromkeys(["istio-aux", application.name, *sorted(others)])
    return [
        _not_in(names.POD_APPLICATION, *applications),
        *({"key": label, "operator": "DoesNotExist"} for label in names.MODEL_OPERATOR_LABELS),
    ]


def _in(label: str, *values: str) -> Expression:
    return {"key": label, "operator": "In", "values": list(values)}


def _not_in(label: str, *values: str) -> Expression:
    return {"key": label, "operator": "NotIn", "values": list(values)}


_OPTED_IN = _in(names.INJECTION_LABEL, names.ENABLED)
_NOT_OPTED_IN = _not_in(names.INJECTION_LABEL, names.ENABLED)
_NOT_OPTED_OUT = _not_in(names.INJECTION_LABEL, names.DISABLED)
_OPT_INS: list[dict[str, Any]] = [
    {
        "name": "legacy-namespace",
        "namespace": [_NOT_OPTED_IN, _in(names.LEGACY_INJECTION_LABEL, names.ENABLED)],
        "pod": [_NOT_OPTED_OUT],
    },
    {"name": "namespace", "namespace": [_OPTED_IN], "pod": [_NOT_OPTED_OUT]},
    {
        "name": "pod",
        "namespace": [_NOT_OPTED_IN, _not_in(names.LEGACY_INJECTION_LABEL, names.ENABLED)],
        "pod": [_OPTED_IN],
    },
]


def _selected(selector: Selector | None) -> list[dict[str, Any]]:
    """Returns the opt-in of the option `namespace-selector`; it matches no pod that another opt-in matches."""
    if not selector:
        return []
    undecided = _not_in(names.INJECTION_LABEL, names.ENABLED, names.DISABLED)
    return [{"name": "selector", "namespace": _selected_namespaces(selector), "pod": [undecided]}]


def _selected_namespaces(selector: Selector) -> list[Expression]:
    unlabelled = [
        _not_in(names.INJECTION_LABEL, names.ENABLED, names.DISABLED),
        _not_in(names.LEGACY_INJECTION_LABEL, names.ENABLED),
    ]
    return [*unlabelled, *selector.expressions]


_RUNS_TO_COMPLETION = {"name": "run-to-completion", "expression": "object.spec.restartPolicy != 'Always'"}
_RUNS_TO_COMPLETION_OR_NOTEBOOK = {
    "name": "run-to-completion-or-notebook",
    "expression": f"{_RUNS_TO_COMPLETION['expression']} "
    "|| (has(object.metadata.labels) && 'notebook-name' in object.metadata.labels)",
}
_HAS_PROXY = {
    "name": "has-proxy",
    "expression": "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
    ".exists(c, c.name == 'istio-proxy')",
}
_LACKS_SHIM = {
    "name": "lacks-shim",
    "expression": "!(has(object.metadata.labels) && 'istio-aux.io/shim' in object.metadata.labels)"
    " && object.spec.containers.exists(c, c.name == 'istio-proxy')"
    " && has(object.metadata.annotations) && 'sidecar.istio.io/status' in object.metadata.annotations"
    " && !('istio-aux.io/mode' in object.metadata.annotations"
    " && object.metadata.annotations['istio-aux.io/mode'] in ['hold', 'off'])",
}
"""Such a pod would not complete."""
_REPORTS_THE_END = [
    {
        "name": "by-a-node",
        "expression": "has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups",
    },
    {
        "name": "not-over",
        "expression": "!(has(object.status.phase) && object.status.phase in ['Succeeded', 'Failed'])",
    },
    {
        "name": "changed",
        "expression": "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))\n"
        ".filter(c, c.name in ['istio-proxy', 'aux-shim'])\n"
        ".all(c, ((has(c.command) ? c.command : []) + (has(c.args) ? c.args : []))"
        ".filter(w, w.startsWith('--await='))\n"
        ".all(w, has(object.status.containerStatuses) && object.status.containerStatuses"
        ".exists(s, '--await=' + s.name == w && has(s.state) && has(s.state.terminated))))\n"
        "!= (has(object.metadata.annotations) && 'istio-aux.io/ended' in object.metadata.annotations)",
    },
]
"""All awaited containers have ended and the annotation is missing, or the other way round."""


def _opt_ins(settings: Settings) -> list[dict[str, Any]]:
    return [*_OPT_INS, *_selected(settings.namespace_selector)]


def _entries_before_istio(settings: Settings) -> Iterable[dict[str, Any]]:
    """Yields the entry for the kubelet's report of the end, and those that add the startup hold.

    While the webhook is unavailable, such a report is rejected, and the kubelet repeats it every 10 s.
    """
    yield {
        "name": "ended",
        "path": "/mutate/ended",
        "failure_policy": settings.failure_policy.capitalize(),
        # A kubelet reports the statuses of all its pods one after the other.
        "timeout": 2,
        "resources": "pods/status",
        "operations": "UPDATE",
        "namespace": [],
        "pod": [{"key": names.SHIM_LABEL, "operator": "Exists"}],
        "conditions": _REPORTS_THE_END,
    }
    if settings.tenancy:
        yield from _tenant_entries(settings)
    for opt_in in _opt_ins(settings):
        yield {**opt_in, "name": f"startup-hold.{opt_in['name']}"}


def _entries_after_istio(settings: Settings) -> Iterable[dict[str, Any]]:
    """Yields the entries that add the shim: twice, as another connection may reach another unit."""
    policy = settings.failure_policy.capitalize()
    for name, failure_policy, condition in (("add-shim", "Ignore", _HAS_PROXY), ("require-shim", policy, _LACKS_SHIM)):
        for opt_in in _opt_ins(settings):
            yield {
                **opt_in,
                "name": f"{name}.{opt_in['name']}",
                "failure_policy": failure_policy,
                "reinvocation": "IfNeeded",
                "conditions": [_RUNS_TO_COMPLETION, condition],
            }


def _tenant_entries(settings: Settings) -> Iterable[dict[str, Any]]:
    """Yields the entries for Kubeflow's tenants. Their failure policy is Ignore: pods start without what they add."""
    in_the_mesh = _in(names.MESH_LABEL, names.RUN_TO_COMPLETION)
    mesh: dict[str, Any] = {
        "path": "/mutate/mesh",
        "pod": [_NOT_OPTED_OUT, {"key": names.ISTIO_INJECT, "operator": "DoesNotExist"}],
        "conditions": [_RUNS_TO_COMPLETION],
    }
    yield {"name": "mesh.tenancy", "namespace": [in_the_mesh, _OPTED_IN], **mesh}
    if selector := settings.namespace_selector:
        namespaces = [in_the_mesh, *_selected_namespaces(selector)]
        yield {"name": "mesh.selector.tenancy", "namespace": namespaces, **mesh}
    yield {
        "name": "pipelines-token.tenancy",
        "path": "/mutate/pipelines-token",
        "namespace": [_in(names.PIPELINES_TOKEN_LABEL, names.ENABLED)],
        "pod": [{"key": names.ACCESS_PIPELINES_LABEL, "operator": "DoesNotExist"}],
        "conditions": [_RUNS_TO_COMPLETION_OR_NOTEBOOK],
    }
