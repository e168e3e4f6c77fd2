"""The cluster rejects calls, and the webhook is not healthy."""

import base64
import datetime
import json
from typing import Any, cast

import httpx2
import pytest
from lightkube.resources.apps_v1 import Deployment
from ops import ActiveStatus, BlockedStatus

from cluster import health
from tests.unit.api import Api, api_error
from tests.unit.juju import SHIM, START, App, Clock, image_resource
from tests.unit.seen import API_UNAVAILABLE, CONTROLLER, INSTALLED, NO_TRUST, NOT_READY, WEBHOOK, objects, webhooks

# The cluster rejects calls


def test_missing_trust_is_reported_with_the_command(app: App, api: Api) -> None:
    api.broken = api_error(403)
    app.deploy()
    assert app.status() == NO_TRUST
    api.broken = None
    app.run(0, "config_changed")
    assert app.status() == ActiveStatus()
    assert objects(api) == INSTALLED


def test_denial_by_a_policy_is_reported_in_its_words(app: App, api: Api) -> None:
    api.rejected["Service"] = api_error(403, 'admission webhook "policy.example" denied the request: no cost centre')
    app.deploy()
    assert app.status().message.endswith("denied the request: no cost centre")


@pytest.mark.parametrize(
    "failure", [httpx2.ConnectError("refused"), httpx2.ReadTimeout(""), api_error(503), api_error(429), api_error(409)]
)
def test_unavailable_api_is_waited_for(app: App, api: Api, failure: Exception) -> None:
    api.broken = failure
    app.deploy()
    assert app.status() == API_UNAVAILABLE
    api.broken = None
    app.update(0)
    assert app.status() == ActiveStatus()


@pytest.mark.parametrize("code", [400, 404, 422])
def test_rejection_by_the_api_is_reported(app: App, api: Api, code: int) -> None:
    api.rejected["Service"] = api_error(code, "spec.ports: too many")
    app.deploy()
    assert app.status() == BlockedStatus("the Kubernetes API rejects an object of this charm: spec.ports: too many")


def test_second_application_changes_nothing(app: App, api: Api) -> None:
    app.deploy()
    before = dict(api.objects)
    second = App("aux")
    second.deploy()
    message = "application istio-aux of model kubeflow is istio-aux already; remove one of the two"
    assert second.status() == BlockedStatus(message)
    assert api.objects == before


def test_server_without_policies_gets_the_rest(app: App, api: Api) -> None:
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        api.rejected[kind] = api_error(404, "the server could not find the requested resource")
    app.deploy()
    assert app.status() == ActiveStatus()
    assert objects(api) == {kind: names for kind, names in INSTALLED.items() if not kind.startswith("Validating")}


# Images


def test_missing_webhook_image_is_reported(app: App, api: Api) -> None:
    app.resources = frozenset()
    app.deploy()
    assert app.status() == BlockedStatus("attach the resource webhook-image; see juju attach-resource --help")
    assert objects(api) == {}


def test_private_image_is_pulled_with_its_account(app: App, api: Api) -> None:
    app.resources = frozenset({image_resource(username="me", password="secret")})
    app.deploy()
    pod = api.get(*WEBHOOK)["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "istio-aux-webhook-image"}]
    secret = api.get("Secret", "istio-aux-webhook-image", "kubeflow")
    assert secret["type"] == "kubernetes.io/dockerconfigjson"
    account = {"username": "me", "password": "secret"}
    assert json.loads(base64.b64decode(secret["data"][".dockerconfigjson"])) == {"auths": {"registry.example": account}}
    app.resources = frozenset({image_resource()})
    app.update(0)
    assert objects(api) == INSTALLED
    assert api.get(*WEBHOOK)["spec"]["template"]["spec"]["imagePullSecrets"] == []


@pytest.mark.parametrize("option", ["namespaces", "namespace-selector"])
def test_nothing_opts_in_without_a_shim_image(app: App, api: Api, option: str) -> None:
    app.config = {option: "team"}
    app.deploy()
    message = "set the shim's image: juju config istio-aux shim-image=REGISTRY/shim:TAG"
    assert app.status() == BlockedStatus(message)
    assert api.labels("team") == {}
    assert not [name for name in webhooks(api) if ".selector." in name]
    assert app.failure(0, "enable-namespace", namespace="team") == message


def test_applications_keep_their_sidecar_without_a_shim_image(app: App, api: Api) -> None:
    app.config = {"applications": "katib-ui"}
    app.deploy()
    assert "in-mesh.named.istio-aux.io" in webhooks(api)


def test_no_pod_gets_a_shim_without_its_image(app: App, api: Api) -> None:
    """Nor a sidecar that only the shim would end. Pods may be opted in by labels that the charm did not set."""
    app.config = {"tenancy": True}
    app.deploy()
    assert app.status().message.startswith("set the shim's image")
    called = {name.partition(".")[0] for name in webhooks(api)}
    assert called == {"ended", "startup-hold", "in-mesh", "out-of-mesh", "pipelines-token"}
    app.config = {"tenancy": True, **SHIM}
    app.update(0)
    assert app.status() == ActiveStatus()
    assert {"add-shim", "require-shim", "mesh"} <= {name.partition(".")[0] for name in webhooks(api)}


@pytest.mark.parametrize(
    "status",
    [
        {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2},
        {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 1, "availableReplicas": 2},
        {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 0},
    ],
    ids=["not observed", "one replica left", "none ready"],
)
def test_nothing_opts_in_while_replicas_lack_the_shim_image(app: App, api: Api, status: dict[str, int]) -> None:
    """They would add an image that no registry has, and pods do not change."""
    app.config = {}
    app.deploy()
    api.starts = False
    api.get(*WEBHOOK)["metadata"]["generation"] = 2
    api.get(*WEBHOOK)["status"] = status
    app.config = {"namespaces": "team", "namespace-selector": "profile", **SHIM}
    app.run(0, "config_changed")
    assert app.status() == NOT_READY
    assert not [name for name in webhooks(api) if name.startswith(("add-shim.", "require-shim."))]
    assert api.labels("team") == {}
    assert not [name for name in webhooks(api) if ".selector." in name]
    assert app.failure(0, "enable-namespace", namespace="team").startswith("not every replica of the webhook has")
    api.get(*WEBHOOK)["status"] = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 1}
    app.update(0)
    assert app.status() == ActiveStatus()
    assert "add-shim.namespace.istio-aux.io" in webhooks(api)
    assert api.labels("team") == {"istio-aux.io/injection": "enabled"}


def test_default_of_an_earlier_revision_is_no_shim_image(app: App, api: Api) -> None:
    app.data["options"] = json.dumps({"shim-image": "registry.invalid/istio-aux/shim:earlier"})
    app.config = {"log-level": "loud"}
    app.add(0)
    app.run(0, "upgrade_charm")
    assert not [name for name in webhooks(api) if name.startswith("add-shim.")]


def test_missing_shim_image_is_reported_with_the_applications_name(api: Api) -> None:
    app = App("aux")
    app.config = {}
    app.deploy()
    assert app.status() == BlockedStatus("set the shim's image: juju config aux shim-image=REGISTRY/shim:TAG")


# The webhook is not healthy


def test_webhook_that_is_not_ready_is_reported(app: App, api: Api) -> None:
    api.starts = False
    app.deploy()
    assert app.status() == NOT_READY
    api.get(*WEBHOOK)["status"] = {"availableReplicas": 1}
    app.update(0)
    assert app.status() == ActiveStatus()


def test_hook_waits_a_moment_for_the_webhook(app: App, api: Api, clock: Clock) -> None:
    api.starts = False
    clock.on_sleep = lambda: api.get(*WEBHOOK).update(status={"availableReplicas": 1})
    app.deploy()
    assert app.status() == ActiveStatus()


def test_pods_are_rejected_only_after_the_webhook_has_run(app: App, api: Api) -> None:
    def policies() -> set[str]:
        return {webhook["failurePolicy"] for webhook in webhooks(api).values()}

    api.starts = False
    app.deploy()
    assert policies() == {"Ignore"}
    api.get(*WEBHOOK)["status"] = {"availableReplicas": 1}
    app.update(0)
    assert policies() == {"Ignore", "Fail"}
    api.get(*WEBHOOK)["status"] = {"availableReplicas": 0}
    app.update(0)
    assert policies() == {"Ignore", "Fail"}, "an outage later does not lower the guard"


LATER = START + health.START_TIMEOUT


def deployment(
    since: datetime.datetime, updated: datetime.datetime = START, generation: int = 0, **conditions: str
) -> Deployment:
    """A Deployment with these conditions, which have lasted since then, and were updated last at that time."""
    times = {"lastTransitionTime": since, "lastUpdateTime": updated}
    stamps = {field: time.isoformat().replace("+00:00", "Z") for field, time in times.items()}
    listed = [{"type": name, "status": status, **stamps} for name, status in conditions.items()]
    spec = {"selector": {}, "template": {}}
    status = {"conditions": listed, "observedGeneration": 1}
    made: dict[str, Any] = {"metadata": {"generation": generation}, "spec": spec, "status": status}
    return cast("Deployment", Deployment.from_dict(made))


@pytest.mark.parametrize(
    ("there", "overdue"),
    [
        (None, False),
        (deployment(START), False),
        (deployment(START, Available="True"), False),
        (deployment(START, Available="False"), True),
        (deployment(LATER, Available="False"), False),
        (deployment(START, Available="False", Progressing="True"), True),
        (deployment(START, updated=LATER, Available="False", Progressing="True"), False),
        (deployment(LATER, Available="True", Progressing="False"), True),
        (deployment(START, generation=1, Available="True", Progressing="False"), True),
        (deployment(START, generation=2, Available="True", Progressing="False"), False),
    ],
)
def test_deployment_is_overdue_after_a_minute(there: Deployment | None, overdue: bool) -> None:
    assert health.is_overdue(there, LATER) is overdue


def lose_replicas(api: Api, clock: Clock, workload: tuple[str, str, str], left: int) -> None:
    """Leaves a Deployment fewer available replicas than it should have."""
    since = clock.now.isoformat().replace("+00:00", "Z")
    conditions = [{"type": "Available", "status": "False", "lastTransitionTime": since}]
    api.get(*workload)["status"] = {"availableReplicas": left, "conditions": conditions}
    api.starts = False


def test_controller_without_a_replica_is_reported_after_a_minute(app: App, api: Api, clock: Clock) -> None:
    app.deploy(config={"tenancy": True})
    lose_replicas(api, clock, CONTROLLER, 0)
    clock.passes(seconds=59)
    app.update(0)
    assert app.status() == ActiveStatus()
    clock.passes(seconds=1)
    app.update(0)
    assert app.status().message.startswith(f"waiting for the Deployment {CONTROLLER[1]}, which is not ready")


def test_webhook_without_a_replica_is_not_waited_for_after_a_minute(app: App, api: Api, clock: Clock) -> None:
    app.deploy()
    lose_replicas(api, clock, WEBHOOK, 0)
    clock.passes(seconds=59)
    app.update(0)
    assert clock.now == START + health.START_TIMEOUT
    assert app.status() == NOT_READY


@pytest.mark.parametrize("workload", [WEBHOOK, CONTROLLER])
def test_workload_with_one_of_two_replicas_is_not_reported(
    app: App, api: Api, clock: Clock, workload: tuple[str, str, str]
) -> None:
    app.deploy(config={"tenancy": True})
    lose_replicas(api, clock, workload, 1)
    clock.passes(days=1)
    app.update(0)
    assert app.status() == ActiveStatus()


def test_new_image_that_does_not_start_is_reported(app: App, api: Api) -> None:
    app.deploy()
    conditions = [{"type": "Progressing", "status": "False"}]
    api.get(*WEBHOOK)["status"] = {"availableReplicas": 2, "conditions": conditions}
    api.starts = False
    app.update(0)
    assert app.status() == NOT_READY
