"""A charm's pod under istio-cni, which redirects traffic before the init container that asks the controller."""

# For a cluster with Istio's own CNI plugin: make test-matrix WAYS=istio-cni.

import time

from lightkube.models.core_v1 import Container, ServicePort, ServiceSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import Service

import names
from tests.cluster.admission import containers, is_ready, the_pod
from tests.cluster.model import Model
from tests.cluster.payloads import deployment, payload, stateful_set
from tests.cluster.waiting import until


def controller(model: Model) -> str:
    """A server outside the mesh on the port of Juju's controller. Returns its address."""
    namespace = model.namespace()
    server = deployment("controller", namespace)
    assert server.spec
    assert server.spec.template.spec
    server.spec.template.spec.containers[0].command = ["httpd", "-f", "-p", names.CONTROLLER_PORT]
    model.admin.create(server)
    port = ServicePort(port=int(names.CONTROLLER_PORT))
    metadata = ObjectMeta(name="controller", namespace=namespace)
    model.admin.create(Service(metadata=metadata, spec=ServiceSpec(selector={"app": "controller"}, ports=[port])))
    until("the controller", lambda: is_ready(the_pod(model, namespace, "controller")))
    return f"controller.{namespace}"


def charm(namespace: str, address: str) -> StatefulSet:
    """A StatefulSet as Juju makes it: its pod's first container fetches the agent from the controller."""
    workload = stateful_set("db", namespace)
    assert workload.spec
    assert workload.spec.template.spec
    init: Container = payload(names.CHARM_INIT_CONTAINER)
    init.command = [
        "sh",
        "-c",
        f"until curl -s -o /dev/null --max-time 2 http://{address}:{names.CONTROLLER_PORT}/; do sleep 1; done",
    ]
    workload.spec.template.spec.initContainers = [init]
    return workload


def asks_the_controller(model: Model, namespace: str) -> bool:
    """Returns true if the pod has its sidecar and its init container still calls the controller."""
    pod = the_pod(model, namespace, "db")
    if not pod or not pod.status or "istio-proxy" not in containers(pod):
        return False
    states = {each.name: each.state for each in pod.status.initContainerStatuses or []}
    state = states.get(names.CHARM_INIT_CONTAINER)
    return bool(state and state.running)


def test_control_injected_charm_does_not_reach_its_controller(model: Model) -> None:
    namespace = model.namespace(istio_injection="enabled")
    model.admin.create(charm(namespace, controller(model)))
    until("the init container to run", lambda: asks_the_controller(model, namespace))
    end = time.monotonic() + 15
    while time.monotonic() < end:
        assert asks_the_controller(model, namespace)
        time.sleep(1)


def test_charm_enabled_by_action_reaches_its_controller(model: Model) -> None:
    namespace = model.namespace()
    app = model.deployed()
    model.admin.create(charm(namespace, controller(model)))
    until("the pod, outside the mesh", lambda: is_ready(the_pod(model, namespace, "db")))
    assert app.act(0, "enable-namespace", namespace=namespace, workloads="db")["changed"] == "db"
    until("its sidecar", lambda: (pod := the_pod(model, namespace, "db")) and "istio-proxy" in containers(pod))
    until("the new pod to be ready", lambda: is_ready(the_pod(model, namespace, "db")))
