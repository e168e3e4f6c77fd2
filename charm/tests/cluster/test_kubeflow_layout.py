"""Charmed Kubeflow's layouts: istiod is in the model's own namespace, beside the charms' pods."""

from typing import Any

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod
from ops import ActiveStatus

from tests.cluster import layouts
from tests.cluster.admission import (
    REJECTION,
    admitted,
    containers,
    ended,
    gets_its_shim,
    is_injected,
    is_ready,
    no_injector,
    probe,
    regular_containers,
    rejection,
    rejections,
    the_pod,
)
from tests.cluster.model import Model
from tests.cluster.payloads import Labels, job, workload
from tests.cluster.test_tenancy import KEPT, tenants_objects
from tests.cluster.waiting import until

REQUIRED = "sidecars required, except for istiod and istio, istio-k8s, istio-pilot"


def create(model: Model, injector: dict[str, Any]) -> None:
    model.apply([injector])
    model.at_end.append(("mutatingwebhookconfiguration", injector["metadata"]["name"]))


def label(model: Model, namespace: str, labels: Labels) -> None:
    model.admin.patch(Namespace, namespace, {"metadata": {"labels": dict(labels)}})


# With sidecars: Charmed Kubeflow 1.10 and 1.11


def test_profiles_pods_complete_by_shim_or_natively(model: Model) -> None:
    create(model, layouts.of_istio_pilot(model.name))
    profile = model.namespace(**layouts.SIDECAR_PROFILE)
    opted_out = model.namespace(**layouts.SIDECAR_PROFILE, istio_aux_io__injection="disabled")
    app = model.deployed({"namespace-selector": layouts.PROFILE_SELECTOR, "require-sidecar": True})
    assert app.status() == ActiveStatus(REQUIRED)
    until("the shim in pods", lambda: gets_its_shim(model, profile))
    asks = probe(profile, "Never")
    asks.metadata = ObjectMeta(name="probe", namespace=profile, annotations=dict(layouts.NATIVE))
    native = model.admin.create(asks, dry_run=True)
    assert "istio-proxy" in containers(native) - regular_containers(native)
    assert "aux-shim" not in containers(native)
    model.apply([job("classic", profile, {}), job("native", profile, layouts.NATIVE), job("control", opted_out, {})])
    for name in ("classic", "native"):
        model.kubectl("wait", f"job/{name}", "-n", profile, "--for=condition=Complete", "--timeout=120s")
    until("the control's payload", lambda: "main" in ended(the_pod(model, opted_out, "control")))
    assert ended(the_pod(model, opted_out, "control")) == {"main"}, "its proxy runs"


def test_charms_beside_istiod_wait_for_sidecars_and_istiod_does_not(model: Model) -> None:
    create(model, layouts.of_istio_k8s(model.name, "pilot"))
    label(model, model.name, {"istio-injection": "enabled"})
    app = model.deployed({"namespaces": model.name, "require-sidecar": True})
    assert app.status() == ActiveStatus(f"{REQUIRED}, pilot")
    with no_injector(model):
        until("the policy to be in force", lambda: rejection(model, model.name))
        for exempt in (
            {"app": "istiod"},
            {"app_kubernetes_io__name": "pilot"},
            {"app_kubernetes_io__name": "istio-pilot"},
            {"operator_juju_is__name": "modeloperator"},
            layouts.ISTIO_GATEWAY,
        ):
            assert rejection(model, model.name, **exempt) is None, exempt
        model.apply([workload("StatefulSet", "katib", model.name)])
        until("the rejection of the charm's pod", lambda: rejections(model, model.name))
        assert REJECTION in rejections(model, model.name)[0]
        assert the_pod(model, model.name, "katib") is None
    until("the charm's pod, by itself", lambda: is_ready(the_pod(model, model.name, "katib")))
    assert "istio-proxy" in containers(the_pod(model, model.name, "katib"))


def test_model_operators_stay_out_of_the_mesh(model: Model) -> None:
    label(model, model.name, {"istio-injection": "enabled"})
    model.deployed()
    operator = {"operator_juju_is__name": "modeloperator"}
    until("pods of others to be injected", lambda: is_injected(model, model.name))
    until("the webhook to be called", lambda: not is_injected(model, model.name, **operator))
    assert not is_injected(model, model.name, juju_modeloperator="modeloperator")


def test_profiles_are_opted_in_by_their_label(model: Model) -> None:
    profile = model.namespace(**layouts.SIDECAR_PROFILE)
    opted_out = model.namespace(**layouts.SIDECAR_PROFILE, istio_aux_io__injection="disabled")
    model.deployed({"namespace-selector": layouts.PROFILE_SELECTOR})
    until("the shim in pods", lambda: gets_its_shim(model, profile))
    later = model.namespace(**layouts.SIDECAR_PROFILE)
    until("the shim in pods", lambda: gets_its_shim(model, later))
    assert not gets_its_shim(model, opted_out)
    assert is_injected(model, opted_out)


# Ambient: istio-k8s, istio-beacon-k8s, istio-ingress-k8s

KATIB = {"app.kubernetes.io/name": "katib-controller"}
OPERATOR = {"operator.juju.is/name": "modeloperator"}


def ambient_pods(model: Model, profile: str) -> list[Pod]:
    """Returns pods of every kind, of a profile and of a model that is on the mesh."""
    policies, gateways = ("Always", "OnFailure", "Never"), (layouts.waypoint(model.name), layouts.INGRESS)
    charms = [probe(model.name, **KATIB), probe(model.name, **OPERATOR)]
    payloads = [probe(each, policy) for each in (profile, model.name) for policy in policies]
    proxies = [probe(each, container="istio-proxy", **labels) for each in (profile, model.name) for labels in gateways]
    return [*charms, *payloads, *proxies]


def contents(model: Model, pods: list[Pod]) -> list[tuple[object, object, object]]:
    """Returns what a webhook may change, of pods as the API server would admit them now."""

    def content(pod: Pod) -> tuple[object, object, object]:
        assert pod.metadata
        assert pod.spec
        return pod.metadata.labels, pod.metadata.annotations, pod.spec.to_dict()

    return [content(model.admin.create(each, dry_run=True)) for each in pods]


def test_pods_in_ambient_are_admitted_unchanged(model: Model) -> None:
    create(model, layouts.of_istio_k8s(model.name, "istio-k8s"))
    label(model, model.name, layouts.model_on_mesh(model.name))
    profile, control = model.namespace(), model.namespace(**layouts.SIDECAR_PROFILE)
    label(model, profile, layouts.ambient_profile(profile))
    for each in (profile, model.name):
        until("the namespace's account", lambda each=each: rejection(model, each) is None)
    pods = ambient_pods(model, profile)
    before = contents(model, pods)
    options = {"applications": "katib-controller", "namespaces": model.name, "require-sidecar": True}
    app = model.deployed({"namespace-selector": layouts.PROFILE_SELECTOR, **options})
    assert app.status() == ActiveStatus(REQUIRED)
    until("the shim in the control's pods", lambda: gets_its_shim(model, control))
    until("operators to be kept out elsewhere", lambda: not is_injected(model, control, **OPERATOR))
    assert contents(model, pods) == before
    model.apply([job("one", profile, {}), workload("StatefulSet", "katib", model.name, KATIB)])
    model.kubectl("wait", "job/one", "-n", profile, "--for=condition=Complete", "--timeout=120s")
    until("the charm's pod", lambda: is_ready(the_pod(model, model.name, "katib")))
    assert app.act(0, "list-uninjected-pods", namespace=model.name)["count"] == 0
    with no_injector(model):
        until("the control's rejection", lambda: rejection(model, control, "Never"))
        assert contents(model, pods) == before
        assert rejection(model, model.name, "Never", sidecar_istio_io__inject="true") is None


def test_charms_in_ambient_by_their_own_labels_stay_there(model: Model) -> None:
    model.deployed({"applications": "katib-controller"})
    until("the control's sidecar", lambda: is_injected(model, model.name, **KATIB))
    assert not is_injected(model, model.name, **KATIB, **layouts.charm_on_mesh(model.name))


@pytest.mark.usefixtures("kubeflow")
def test_tenants_in_ambient_are_served_without_sidecar(model: Model) -> None:
    parts = {"pipelines-token": "enabled", "tenancy": "enabled", "mesh": "run-to-completion", "injection": "enabled"}
    wanted = {f"istio-aux.io/{part}": value for part, value in parts.items()}
    tenant, control = model.namespace(**wanted), model.namespace(**wanted)
    label(model, tenant, layouts.ambient_profile(tenant))
    model.deployed({"tenancy": True})
    model.kubectl("annotate", "namespace", tenant, "istio-aux.io/pipelines-accounts=trainer")
    until("the tenant's objects", lambda: tenants_objects(model, tenant) == KEPT)
    until("the control's sidecar", lambda: "istio-proxy" in containers(admitted(model, control, "Never")))
    asks_for_tokens = probe(tenant, "Never")
    assert asks_for_tokens.spec
    asks_for_tokens.spec.automountServiceAccountToken = True
    pod = model.admin.create(asks_for_tokens, dry_run=True)
    assert pod.metadata
    assert pod.spec
    assert containers(pod) == {"main"}
    assert not pod.metadata.labels
    assert not pod.metadata.annotations
    assert "KF_PIPELINES_SA_TOKEN_PATH" in [each.name for each in pod.spec.containers[0].env or []]
