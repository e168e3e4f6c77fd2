"""Charmed Kubeflow's layout: istiod is in the model's own namespace, beside the charms' pods."""

from lightkube.resources.core_v1 import Namespace
from ops import ActiveStatus

from tests.cluster.admission import (
    REJECTION,
    containers,
    gets_its_shim,
    is_injected,
    is_ready,
    no_injector,
    rejection,
    rejections,
    the_pod,
)
from tests.cluster.model import Model
from tests.cluster.payloads import workload
from tests.cluster.waiting import until


def create_injector(model: Model) -> None:
    """Creates an injector as a charm of the model does: it calls istiod in the model's namespace. It selects no pod."""
    name = f"{model.name}-injector"
    webhook = {
        "name": "namespace.sidecar-injector.istio.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"service": {"name": "istiod", "namespace": model.name}},
        "objectSelector": {"matchLabels": {"no.pod/has-this": "label"}},
        "failurePolicy": "Ignore",
    }
    labels = {"app": "sidecar-injector", "app.kubernetes.io/instance": f"pilot-{model.name}"}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    model.apply([{**kind, "metadata": {"name": name, "labels": labels}, "webhooks": [webhook]}])
    model.at_end.append(("mutatingwebhookconfiguration", name))


def label(model: Model, **labels: str | None) -> None:
    named = {name.replace("_", "-"): value for name, value in labels.items()}
    model.admin.patch(Namespace, model.name, {"metadata": {"labels": named}})


def test_charms_beside_istiod_wait_for_sidecars_and_istiod_does_not(model: Model) -> None:
    create_injector(model)
    label(model, istio_injection="enabled")
    app = model.deployed({"namespaces": model.name, "require-sidecar": True})
    assert app.status() == ActiveStatus("sidecars required, except for istiod and istio, istio-k8s, istio-pilot, pilot")
    with no_injector(model):
        until("the policy to be in force", lambda: rejection(model, model.name))
        for exempt in (
            {"app": "istiod"},
            {"app_kubernetes_io__name": "pilot"},
            {"app_kubernetes_io__name": "istio-pilot"},
            {"operator_juju_is__name": "modeloperator"},
        ):
            assert rejection(model, model.name, **exempt) is None, exempt
        model.apply([workload("StatefulSet", "katib", model.name)])
        until("the rejection of the charm's pod", lambda: rejections(model, model.name))
        assert REJECTION in rejections(model, model.name)[0]
        assert the_pod(model, model.name, "katib") is None
    until("the charm's pod, by itself", lambda: is_ready(the_pod(model, model.name, "katib")))
    assert "istio-proxy" in containers(the_pod(model, model.name, "katib"))


def test_model_operators_stay_out_of_the_mesh(model: Model) -> None:
    label(model, istio_injection="enabled")
    model.deployed()
    operator = {"operator_juju_is__name": "modeloperator"}
    until("pods of others to be injected", lambda: is_injected(model, model.name))
    until("the webhook to be called", lambda: not is_injected(model, model.name, **operator))
    assert not is_injected(model, model.name, juju_modeloperator="modeloperator")


def test_profiles_are_opted_in_by_their_label(model: Model) -> None:
    profile = model.namespace(istio_injection="enabled", app_kubernetes_io__part_of="kubeflow-profile")
    opted_out = model.namespace(
        app_kubernetes_io__part_of="kubeflow-profile", istio_aux_io__injection="disabled", istio_injection="enabled"
    )
    model.deployed({"namespace-selector": "app.kubernetes.io/part-of=kubeflow-profile"})
    until("the shim in pods", lambda: gets_its_shim(model, profile))
    later = model.namespace(istio_injection="enabled", app_kubernetes_io__part_of="kubeflow-profile")
    until("the shim in pods", lambda: gets_its_shim(model, later))
    assert not gets_its_shim(model, opted_out)
    assert is_injected(model, opted_out)
