"""Pods that miss their shim, sidecar or startup hold."""

from typing import Any, cast

import pytest
from lightkube.resources.core_v1 import Pod

from application import Application
from mesh import pods
from settings import Settings
from tests.unit.test_namespaces import namespace

MESH = {"istio-aux.io/injection": "enabled", "istio-injection": "enabled"}
OPT_IN = {"istio-aux.io/injection": "enabled"}
AMBIENT = {"istio.io/dataplane-mode": "ambient"}
KATIB = {"app.kubernetes.io/name": "katib"}
MAIN, PROXY = {"name": "main"}, {"name": "istio-proxy"}
NATIVE_PROXY = {"name": "istio-proxy", "restartPolicy": "Always"}
HELD_PROXY = {"name": "istio-proxy", "lifecycle": {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}}
HOLD = {"proxy.istio.io/config": '{"holdApplicationUntilProxyStarts": true}'}
APPLICATION = Application("aux", "team", "u")
SETTINGS = Settings.parse({"applications": "katib,minio", "shim-image": "registry.example/shim:1"})
INJECT = "sidecar.istio.io/inject"
TEMPLATES = "inject.istio.io/templates"


def pod(
    *containers: dict[str, Any],
    restart: str = "Never",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    phase: str = "Running",
    **spec: Any,
) -> Pod:
    made = Pod.from_dict(
        {
            "metadata": {"name": "one", "namespace": "team", "labels": labels, "annotations": annotations},
            "spec": {"containers": list(containers), "restartPolicy": restart, **spec},
            "status": {"phase": phase},
        }
    )
    return cast("Pod", made)


CASES: list[tuple[str, dict[str, str], Pod, str | None]] = [
    ("classic proxy, no shim", MESH, pod(MAIN, PROXY), "no-shim"),
    ("OnFailure completes too", MESH, pod(MAIN, PROXY, restart="OnFailure"), "no-shim"),
    ("with its shim", MESH, pod(MAIN, PROXY, labels={"istio-aux.io/shim": "native"}), None),
    ("runs always, no hold", MESH, pod(MAIN, PROXY, restart="Always"), "no-hold"),
    ("runs always with the hold", MESH, pod(MAIN, PROXY, restart="Always", annotations=HOLD), None),
    ("hold of the whole mesh", MESH, pod(MAIN, HELD_PROXY, restart="Always"), None),
    ("hold not wanted", MESH, pod(MAIN, PROXY, restart="Always", annotations={"istio-aux.io/mode": "off"}), None),
    ("gateway", MESH, pod(PROXY, restart="Always"), None),
    ("native proxy starts first", MESH, pod(MAIN, restart="Always", initContainers=[NATIVE_PROXY]), None),
    ("native proxy needs no shim", MESH, pod(MAIN, initContainers=[NATIVE_PROXY]), None),
    ("unchanged by webhook", MESH, pod(MAIN, PROXY, annotations={"istio-aux.io/status": "{}"}), None),
    ("unchanged by user", MESH, pod(MAIN, PROXY, annotations={"istio-aux.io/mode": "hold"}), None),
    ("other mode still misses", MESH, pod(MAIN, PROXY, annotations={"istio-aux.io/mode": "status"}), "no-shim"),
    ("Istio's, but not native", MESH, pod(MAIN, PROXY, annotations={"istio-aux.io/mode": "istio"}), "no-shim"),
    ("has succeeded", MESH, pod(MAIN, PROXY, phase="Succeeded"), None),
    ("has failed", MESH, pod(MAIN, PROXY, phase="Failed"), None),
    ("opted out", MESH, pod(MAIN, PROXY, labels={"istio-aux.io/injection": "disabled"}), None),
    ("not opted in", {"istio-injection": "enabled"}, pod(MAIN, PROXY), None),
    ("opted in itself", {}, pod(MAIN, PROXY, labels=OPT_IN), "no-shim"),
    ("legacy opt-in", {"io.datastrophic/istio-aux": "enabled"}, pod(MAIN, PROXY), "no-shim"),
    ("no sidecar", MESH, pod(MAIN, restart="Always"), "no-sidecar"),
    ("no sidecar, completes", MESH, pod(MAIN), "no-sidecar"),
    ("by revision", {**OPT_IN, "istio.io/rev": "canary"}, pod(MAIN), "no-sidecar"),
    ("by its revision", OPT_IN, pod(MAIN, labels={"istio.io/rev": "canary"}), "no-sidecar"),
    ("by its label", OPT_IN, pod(MAIN, labels={INJECT: "true"}), "no-sidecar"),
    ("its label does not count here", {**OPT_IN, "istio-injection": "no"}, pod(MAIN, labels={INJECT: "true"}), None),
    ("namespace without Istio", OPT_IN, pod(MAIN), None),
    ("of a named application", {}, pod(MAIN, labels=KATIB), "no-sidecar"),
    ("named, in a namespace without injection", {"istio-injection": "disabled"}, pod(MAIN, labels=KATIB), None),
    ("named and excluded", {}, pod(MAIN, labels={**KATIB, INJECT: "false"}), None),
    ("named, on the node's network", {}, pod(MAIN, labels=KATIB, hostNetwork=True), None),
    ("of another application", {}, pod(MAIN, labels={"app.kubernetes.io/name": "other"}), None),
    ("of a named application in ambient", AMBIENT, pod(MAIN, labels=KATIB), None),
    ("of a named application, ambient itself", {}, pod(MAIN, labels={**KATIB, **AMBIENT}), None),
    ("ambient, by its label", {**OPT_IN, **AMBIENT}, pod(MAIN, labels={INJECT: "true"}), None),
    ("ambient, by revision", {**OPT_IN, **AMBIENT, "istio.io/rev": "canary"}, pod(MAIN), None),
    ("ambient with a classic proxy", {**OPT_IN, **AMBIENT}, pod(MAIN, PROXY), "no-shim"),
    ("ambient gets no hold", {**OPT_IN, **AMBIENT}, pod(MAIN, PROXY, restart="Always"), None),
    ("another data plane", {**MESH, "istio.io/dataplane-mode": "none"}, pod(MAIN), "no-sidecar"),
    ("excluded by label", MESH, pod(MAIN, labels={INJECT: "false"}), None),
    ("excluded by annotation", MESH, pod(MAIN, annotations={INJECT: "false"}), None),
    ("label before annotation", MESH, pod(MAIN, labels={INJECT: "true"}, annotations={INJECT: "false"}), "no-sidecar"),
    ("on the node's network", MESH, pod(MAIN, hostNetwork=True), None),
    ("of another template", MESH, pod(MAIN, annotations={TEMPLATES: "grpc-simple"}), None),
    ("of another template, too", MESH, pod(MAIN, annotations={TEMPLATES: "sidecar, mine"}), "no-sidecar"),
    ("istiod", MESH, pod(MAIN, labels={"app": "istiod"}), None),
    ("the charm's own", MESH, pod(MAIN, labels={"app.kubernetes.io/name": "aux"}), None),
    ("the webhook's own", MESH, pod(MAIN, labels={"app.kubernetes.io/name": "aux-webhook"}), None),
    ("model operator", MESH, pod(MAIN, labels={"operator.juju.is/name": "model"}), None),
    ("older model operator", MESH, pod(MAIN, labels={"juju-modeloperator": "modeloperator"}), None),
]


@pytest.mark.parametrize(("labels", "there", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_pod_misses(labels: dict[str, str], there: Pod, expected: str | None) -> None:
    assert pods.missed(there, namespace("team", labels), APPLICATION, SETTINGS) == expected


def test_no_pod_misses_a_shim_that_has_no_image() -> None:
    there = pod(MAIN, PROXY)
    assert pods.missed(there, namespace("team", MESH), APPLICATION, Settings()) is None
    assert pods.missed(pod(MAIN), namespace("team", MESH), APPLICATION, Settings()) == "no-sidecar"


@pytest.mark.parametrize("labels", [{}, OPT_IN])
def test_pod_of_kube_system_misses_nothing(labels: dict[str, str]) -> None:
    there = pod(MAIN, PROXY, labels=labels)
    assert pods.missed(there, namespace("kube-system", MESH), APPLICATION, SETTINGS) is None


def test_pod_without_a_specification_misses_nothing() -> None:
    assert pods.missed(Pod(), namespace("team", OPT_IN), APPLICATION, SETTINGS) is None
