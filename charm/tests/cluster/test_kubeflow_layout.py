"""Charmed Kubeflow's layout: istiod is in the model's own namespace, beside the charms' pods."""

from collections.abc import Iterator

import pytest
from lightkube.models.admissionregistration_v1 import (
    MutatingWebhook,
    ServiceReference,
    WebhookClientConfig,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.apps_v1 import Deployment, StatefulSet
from lightkube.resources.core_v1 import Namespace
from ops import ActiveStatus

from tests.cluster.admission import (
    REJECTION,
    containers,
    is_injected,
    is_ready,
    no_injector,
    rejection,
    rejections,
    the_pod,
)
from tests.cluster.model import Model
from tests.cluster.payloads import deployment, stateful_set
from tests.cluster.waiting import until

OUT_OF_THE_MESH = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}


@pytest.fixture
def injector_of_the_model(model: Model) -> Iterator[str]:
    """An injector as a charm of the model makes it, which calls istiod in the model's namespace. It selects no pod."""
    name = f"{model.name}-injector"
    nothing = LabelSelector(matchLabels={"no.pod/has-this": "label"})
    entry = MutatingWebhook(
        name="namespace.sidecar-injector.istio.io",
        admissionReviewVersions=["v1"],
        sideEffects="None",
        clientConfig=WebhookClientConfig(service=ServiceReference(name="istiod", namespace=model.name)),
        objectSelector=nothing,
        failurePolicy="Ignore",
    )
    labels = {"app": "sidecar-injector", "app.juju.is/created-by": "pilot"}
    metadata = ObjectMeta(name=name, labels=labels)
    model.admin.create(MutatingWebhookConfiguration(metadata=metadata, webhooks=[entry]))
    yield name
    model.kubectl("delete", "mutatingwebhookconfiguration", name, "--ignore-not-found")


def label(model: Model, **labels: str | None) -> None:
    named = {name.replace("_", "-"): value for name, value in labels.items()}
    model.admin.patch(Namespace, model.name, {"metadata": {"labels": named}})


@pytest.mark.usefixtures("injector_of_the_model")
def test_charms_beside_istiod_wait_for_sidecars_and_istiod_does_not(model: Model) -> None:
    label(model, istio_injection="enabled")
    app = model.deployed({"namespaces": model.name, "require-sidecar": True})
    assert app.status() == ActiveStatus("sidecars required, except for istiod and istio-k8s, istio-pilot, pilot")
    with no_injector(model):
        until("the policy to be in force", lambda: rejection(model, model.name))
        for exempt in (
            {"app": "istiod"},
            {"app_kubernetes_io__name": "pilot"},
            {"app_kubernetes_io__name": "istio-pilot"},
            {"operator_juju_is__name": "modeloperator"},
        ):
            assert rejection(model, model.name, **exempt) is None, exempt
        model.admin.create(stateful_set("katib", model.name))
        until("the rejection of the charm's pod", lambda: rejections(model, model.name))
        assert REJECTION in rejections(model, model.name)[0]
        assert the_pod(model, model.name, "katib") is None
    until("the charm's pod, by itself", lambda: is_ready(the_pod(model, model.name, "katib")))
    pod = the_pod(model, model.name, "katib")
    assert pod
    assert "istio-proxy" in containers(pod)


def test_model_operators_are_excluded_until_removal(model: Model) -> None:
    other = model.namespace(istio_injection="enabled")
    ambient = model.namespace(istio_io__dataplane_mode="ambient")
    for namespace in (model.name, other, ambient):
        model.admin.create(deployment("modeloperator", namespace))
    model.admin.create(stateful_set("istio-aux", model.name))
    app = model.deployed()
    operators = [template_labels(model, namespace) for namespace in (model.name, other, ambient)]
    assert operators == [{}, OUT_OF_THE_MESH, OUT_OF_THE_MESH]
    until("its pod, without a sidecar", lambda: is_ready(the_pod(model, other, "modeloperator")))
    app.config = {"namespaces": model.name}
    app.update(0)
    assert template_labels(model, model.name) == OUT_OF_THE_MESH
    own = model.admin.get(StatefulSet, "istio-aux", namespace=model.name)
    assert own.spec
    assert own.spec.template.metadata
    assert (own.spec.template.metadata.labels or {}).items() >= OUT_OF_THE_MESH.items()
    app.remove_all()
    assert [template_labels(model, namespace) for namespace in (model.name, other, ambient)] == [{}, {}, {}]


def template_labels(model: Model, namespace: str) -> dict[str, str]:
    operator = model.admin.get(Deployment, "modeloperator", namespace=namespace)
    assert operator.spec
    assert operator.spec.template.metadata
    labels = dict(operator.spec.template.metadata.labels or {})
    del labels["app"]
    return labels


def test_profiles_are_opted_in_by_their_label(model: Model) -> None:
    profile = model.namespace(istio_injection="enabled", app_kubernetes_io__part_of="kubeflow-profile")
    opted_out = model.namespace(
        app_kubernetes_io__part_of="kubeflow-profile", istio_aux_io__injection="disabled", istio_injection="enabled"
    )
    model.deployed({"namespace-selector": "app.kubernetes.io/part-of=kubeflow-profile"})
    # No webhook runs, so the API server rejects the pods for which it would be called.
    until("the webhook to be called", lambda: rejection(model, profile, "Never"))
    later = model.namespace(istio_injection="enabled", app_kubernetes_io__part_of="kubeflow-profile")
    until("the webhook to be called", lambda: rejection(model, later, "Never"))
    assert rejection(model, profile, "Never", istio_aux_io__injection="disabled") is None
    assert rejection(model, opted_out, "Never") is None
    assert is_injected(model, opted_out)
