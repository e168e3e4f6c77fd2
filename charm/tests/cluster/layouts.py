"""What the charms of Charmed Kubeflow's meshes write. Each fact names the repository and path where it was read.

With sidecars, Charmed Kubeflow 1.10 and 1.11: istio-pilot and istio-gateway. Ambient: istio-k8s, istio-beacon-k8s and
istio-ingress-k8s (canonical/charmed-kubeflow-solutions, modules/kubeflow and modules/kubeflow-ambient).
"""

from typing import Any

from tests.cluster.payloads import Labels

PROFILE_SELECTOR = "app.kubernetes.io/part-of=kubeflow-profile"

# canonical/kubeflow-profiles-operator, src/templates/namespace-labels.yaml.j2; the policy is config.yaml's default.
_PROFILE: Labels = {
    "katib.kubeflow.org/metrics-collector-injection": "enabled",
    "serving.kubeflow.org/inferenceservice": "enabled",
    "pipelines.kubeflow.org/enabled": "true",
    "app.kubernetes.io/part-of": "kubeflow-profile",
    "user.kubeflow.org/enabled": "true",
    "pod-security.kubernetes.io/enforce": "privileged",
}

# kubeflow/dashboard, components/profile-controller/controllers/profile_controller.go
SIDECAR_PROFILE: Labels = {**_PROFILE, "istio-injection": "enabled"}

# istiod makes sidecars native where every node's kubelet is 1.33 or newer: istio/istio, pkg/kube/inject/webhook.go,
# DetectNativeSidecar. The cluster's istiod makes none by itself, so here the pod asks for one.
NATIVE: dict[str, str] = {"sidecar.istio.io/nativeSidecar": "true"}

# canonical/istio-operators, charms/istio-gateway/src/manifest.yaml
ISTIO_GATEWAY: Labels = {
    "app": "istio-ingressgateway",
    "istio": "ingressgateway",
    "istio.io/rev": "default",
    "sidecar.istio.io/inject": "false",
}


def ambient_profile(namespace: str) -> Labels:
    """Returns a profile's labels under kubeflow-profiles' `service-mesh-mode=istio-ambient`.

    canonical/kubeflow-profiles-operator, src/charm.py, has the controller's argument; kubeflow/dashboard, pull request
    267, what it then does (components/profile-controller/controllers/profile_controller_test.go).
    """
    return {
        **_PROFILE,
        "istio-injection": "disabled",
        "istio.io/dataplane-mode": "ambient",
        "istio.io/use-waypoint": "waypoint",
        "istio.io/use-waypoint-namespace": namespace,
        "istio.io/ingress-use-waypoint": "true",
    }


def model_on_mesh(model: str) -> Labels:
    """Returns the labels of the model's namespace under istio-beacon-k8s' option `model-on-mesh`.

    canonical/istio-beacon-k8s-operator, src/charm.py, _add_labels.
    """
    identity = f"{model}.istio-beacon-k8s"
    return {
        "istio.io/use-waypoint": _waypoint(model),
        "istio.io/dataplane-mode": "ambient",
        "charms.canonical.com/istio.io.waypoint.managed-by": identity,
    }


def charm_on_mesh(model: str) -> Labels:
    """Returns the labels of the pods of charms related to istio-beacon-k8s, with `model-on-mesh` off, the default.

    canonical/istio-beacon-k8s-operator, src/charm.py, mesh_labels.
    """
    return {
        "istio.io/dataplane-mode": "ambient",
        "istio.io/use-waypoint": _waypoint(model),
        "istio.io/use-waypoint-namespace": model,
    }


def waypoint(model: str) -> Labels:
    """Returns the labels of the pods of istio-beacon-k8s' Gateway.

    canonical/istio-beacon-k8s-operator, src/charm.py, _construct_waypoint; istiod makes the pods: istio/istio,
    manifests/charts/istio-control/istio-discovery/files/waypoint.yaml.
    """
    return {
        "sidecar.istio.io/inject": "false",
        "istio.io/dataplane-mode": "none",
        "gateway.networking.k8s.io/gateway-name": _waypoint(model),
        "gateway.networking.k8s.io/gateway-class-name": "istio-waypoint",
        "gateway.istio.io/managed": "istio.io-mesh-controller",
    }


# canonical/istio-ingress-k8s-operator, src/charm.py, _construct_gateway: it has the application's name. The pods:
# istio/istio, manifests/charts/istio-control/istio-discovery/files/kube-gateway.yaml.
INGRESS: Labels = {
    "sidecar.istio.io/inject": "false",
    "gateway.networking.k8s.io/gateway-name": "istio-ingress-k8s",
    "gateway.networking.k8s.io/gateway-class-name": "istio",
    "gateway.istio.io/managed": "istio.io-gateway-controller",
}


def of_istio_pilot(model: str) -> dict[str, Any]:
    """Returns the injector of istio-pilot, which runs `istioctl install` and adds no label of its own.

    canonical/istio-operators, charms/istio-pilot/src/istioctl.py.
    """
    return _injector(model, {"app.kubernetes.io/instance": "istio"})


def of_istio_k8s(model: str, application: str) -> dict[str, Any]:
    """Returns the injector of istio-k8s, which labels what it applies.

    canonical/istio-k8s-operator, src/charm.py, _get_control_plane_kubernetes_resource_manager; the labels are those of
    create_charm_default_labels, as in canonical/charmed-kubeflow-chisme,
    src/charmed_kubeflow_chisme/kubernetes/_kubernetes_resource_handler.py.
    """
    instance = f"{application}-{model}"
    scope = "control-plane"
    return _injector(model, {"app.kubernetes.io/instance": instance, "kubernetes-resource-handler-scope": scope})


def _injector(model: str, labels: Labels) -> dict[str, Any]:
    """Returns an injector that calls istiod in the model's namespace, as both charms have it. It selects no pod here.

    istio/istio, manifests/charts/istio-control/istio-discovery/templates/mutatingwebhook.yaml.
    """
    charts = {"app": "sidecar-injector", "istio.io/rev": "default", "release": "istio"}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": f"istio-sidecar-injector-{model}", "labels": {**charts, **labels}},
        "webhooks": [
            {
                "name": "namespace.sidecar-injector.istio.io",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {"service": {"name": "istiod", "namespace": model}},
                "objectSelector": {"matchLabels": {"no.pod/has-this": "label"}},
                "failurePolicy": "Ignore",
            }
        ],
    }


def _waypoint(model: str) -> str:
    # charm_kubernetes_label of PyPI's canonical-service-mesh, canonical_service_mesh/utils/_labels.py
    return f"{model}-istio-beacon-k8s-waypoint"
