"""The actions, and the one line with which each fails."""

from typing import Any

import pytest
from ops import testing

from tests.unit.api import Api, refusal
from tests.unit.juju import App, Clock
from tests.unit.seen import trusted

MESH = {"istio-aux.io/injection": "enabled", "istio-injection": "enabled"}
OPT_IN = {"istio-aux.io/injection": "enabled"}
MAIN, PROXY = {"name": "main"}, {"name": "istio-proxy"}


def controlled_by(kind: str, name: str) -> list[dict[str, object]]:
    return [{"apiVersion": "v1", "kind": kind, "name": name, "uid": name, "controller": True}]


def put_pod(api: Api, name: str, owner: tuple[str, str] | None, *containers: dict[str, str], restart: str) -> None:
    metadata: dict[str, Any] = {"ownerReferences": controlled_by(*owner)} if owner else {}
    api.put("Pod", name, "team", metadata=metadata, spec={"containers": list(containers), "restartPolicy": restart})


@pytest.fixture
def missed(app: App, api: Api) -> App:
    """A namespace with every kind of pod that misses something."""
    api.put("Namespace", "team", metadata={"labels": MESH})
    api.put(
        "ReplicaSet",
        "web-1",
        "team",
        metadata={"ownerReferences": controlled_by("Deployment", "web")},
        spec={"selector": {}},
    )
    for kind, name in (("Deployment", "web"), ("StatefulSet", "db")):
        api.put(kind, name, "team", spec={"selector": {}, "template": {"metadata": {"labels": {}}}, "serviceName": ""})
    put_pod(api, "web-1-a", ("ReplicaSet", "web-1"), MAIN, restart="Always")
    put_pod(api, "web-1-b", ("ReplicaSet", "web-1"), MAIN, restart="Always")
    put_pod(api, "lost-a", ("ReplicaSet", "gone"), MAIN, restart="Always")
    put_pod(api, "db-0", ("StatefulSet", "db"), MAIN, restart="Always")
    put_pod(api, "well-0", ("StatefulSet", "well"), MAIN, PROXY, restart="Always")
    put_pod(api, "job-a", ("Job", "job"), MAIN, PROXY, restart="Never")
    put_pod(api, "alone", None, MAIN, restart="Always")
    app.deploy()
    return app


def test_missed_pods_are_listed_with_what_they_miss_and_their_owners(missed: App) -> None:
    results = missed.act(0, "list-missed-pods")
    assert results["count"] == 6
    assert results["pods"].splitlines() == [
        "team/Pod/alone no-sidecar -",
        "team/Pod/db-0 no-sidecar team/StatefulSet/db",
        "team/Pod/job-a no-shim team/Job/job",
        "team/Pod/lost-a no-sidecar team/ReplicaSet/gone",
        "team/Pod/web-1-a no-sidecar team/Deployment/web",
        "team/Pod/web-1-b no-sidecar team/Deployment/web",
    ]


def test_missed_pods_of_one_namespace(missed: App, api: Api) -> None:
    api.put("Namespace", "other", metadata={"labels": MESH})
    api.put("Pod", "one", "other", spec={"containers": [MAIN], "restartPolicy": "Always"})
    assert missed.act(0, "list-missed-pods")["count"] == 7
    assert missed.act(0, "list-missed-pods", namespace="other")["pods"] == "other/Pod/one no-sidecar -"


ROLLABLE = "team/Deployment/web\nteam/StatefulSet/db"
BY_HAND = "team/Job/job\nteam/Pod/alone\nteam/ReplicaSet/gone"


def test_roll_is_a_dry_run_unless_told(missed: App, api: Api) -> None:
    writes = len(api.writes)
    results = missed.act(0, "roll-missed-pods", namespace="team")
    assert results == {"would-roll": ROLLABLE, "to-delete-by-hand": BY_HAND}
    assert len(api.writes) == writes


def test_roll_restarts_each_owner_once(missed: App, api: Api) -> None:
    before = len(api.writes)
    results = missed.act(0, "roll-missed-pods", **{"dry-run": False})
    assert results == {"rolled": ROLLABLE, "to-delete-by-hand": BY_HAND}
    assert api.writes[before:] == [("patch", "Deployment/web"), ("patch", "StatefulSet/db")]
    annotations = api.get("Deployment", "web", "team")["spec"]["template"]["metadata"]["annotations"]
    assert list(annotations) == ["kubectl.kubernetes.io/restartedAt"]


def test_enabled_namespace_stays_enabled_through_reconciliation(app: App, api: Api) -> None:
    app.deploy()
    assert app.act(0, "enable-namespace", namespace="team") == {"namespace": "team", "changed": "yes"}
    app.update(0)
    assert api.labels("team") == OPT_IN
    again = app.act(0, "enable-namespace", namespace="team")
    assert again == {"namespace": "team", "changed": "no, it was enabled"}


def test_enabled_namespace_is_injected_by_istio_on_demand_and_released_with_the_application(app: App, api: Api) -> None:
    app.deploy()
    app.act(0, "enable-namespace", namespace="team", **{"istio-injection": True})
    assert api.labels("team") == MESH
    app.planned = 0
    app.update(0)
    assert api.labels("team") == {}


def test_enabling_the_model_keeps_its_operator_out_of_the_mesh(app: App, api: Api) -> None:
    app.deploy()
    app.act(0, "enable-namespace", namespace="kubeflow")
    for kind, name in (("Deployment", "modeloperator"), ("StatefulSet", "istio-aux")):
        labels = api.get(kind, name, "kubeflow")["spec"]["template"]["metadata"]["labels"]
        assert labels == {"sidecar.istio.io/inject": "false"}
    patched = [name for verb, name in api.writes if verb == "patch"]
    assert patched == ["Deployment/modeloperator", "StatefulSet/istio-aux", "Namespace/kubeflow"]


def test_chosen_workloads_are_enabled_by_their_templates(missed: App, api: Api) -> None:
    api.put("Namespace", "team")
    in_mesh = {"istio-aux.io/injection": "enabled", "sidecar.istio.io/inject": "true"}
    results = missed.act(0, "enable-namespace", namespace="team", workloads="db, web")
    assert results == {"namespace": "team", "changed": "db, web"}
    assert api.labels("team") == {}
    for kind, name in (("Deployment", "web"), ("StatefulSet", "db")):
        assert api.get(kind, name, "team")["spec"]["template"]["metadata"]["labels"] == in_mesh
    again = missed.act(0, "enable-namespace", namespace="team", workloads="db")
    assert again == {"namespace": "team", "changed": "no, they were enabled"}
    taken_out = missed.act(0, "disable-namespace", namespace="team")
    assert taken_out == {"namespace": "team", "changed": "no, it was not enabled", "workloads": "web, db"}
    assert api.get("Deployment", "web", "team")["spec"]["template"]["metadata"]["labels"] == {}


def test_disabled_namespace_keeps_istios_own_label_and_workloads_that_are_not_ours(app: App, api: Api) -> None:
    labels = {"istio-aux.io/injection": "enabled"}
    template = {"metadata": {"labels": labels}}
    api.put("StatefulSet", "person", "team", spec={"selector": {}, "template": template, "serviceName": ""})
    api.put("Namespace", "team", metadata={"labels": MESH})
    app.deploy()
    results = app.act(0, "disable-namespace", namespace="team")
    assert results == {"namespace": "team", "changed": "yes", "workloads": ""}
    assert api.labels("team") == {"istio-injection": "enabled"}
    assert api.get("StatefulSet", "person", "team")["spec"]["template"]["metadata"]["labels"] == labels


def test_rotated_certificate_is_trusted_then_served(app: App, api: Api, clock: Clock) -> None:
    app.deploy()
    first = app.kept().current
    assert app.act(0, "rotate-certificates") == {"rotated": "yes; other units follow as they hear of it"}
    assert app.kept().current != first
    assert app.served(0) == app.kept().current.text
    assert first.authority.strip() in trusted(api)


FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("list-missed-pods", {"namespace": "gone"}, "there is no namespace gone"),
    ("roll-missed-pods", {"namespace": "gone"}, "there is no namespace gone"),
    ("enable-namespace", {"namespace": "gone"}, "there is no namespace gone"),
    ("disable-namespace", {"namespace": "gone"}, "there is no namespace gone"),
    ("disable-namespace", {"namespace": "listed"}, "the option namespaces lists listed: take it out there"),
    (
        "enable-namespace",
        {"namespace": "team", "workloads": "db, nothing, none"},
        "namespace team has no StatefulSet or Deployment nothing, none",
    ),
    (
        "enable-namespace",
        {"namespace": "team", "workloads": "db", "istio-injection": True},
        "workloads and istio-injection exclude each other: the latter is for all of the namespace",
    ),
]


@pytest.mark.parametrize(("action", "params", "message"), FAILURES)
def test_action_fails_with_one_line_and_changes_nothing(
    app: App, api: Api, action: str, params: dict[str, Any], message: str
) -> None:
    api.put("Namespace", "listed")
    api.put("StatefulSet", "db", "team", spec={"selector": {}, "template": {}, "serviceName": ""})
    app.config = {"namespaces": "listed"}
    app.deploy()
    writes = len(api.writes)
    with pytest.raises(testing.ActionFailed) as failed:
        app.act(0, action, **params)
    assert failed.value.message == message
    assert len(api.writes) == writes


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (refusal(403), "no rights in the cluster; run: juju trust istio-aux --scope=cluster"),
        (refusal(503, "busy"), "the Kubernetes API does not answer; try again: busy"),
        (refusal(422, "odd"), "the Kubernetes API refuses this: odd"),
    ],
)
def test_action_says_how_the_cluster_fails(app: App, api: Api, failure: Exception, message: str) -> None:
    app.deploy()
    api.broken = failure
    with pytest.raises(testing.ActionFailed) as failed:
        app.act(0, "list-missed-pods")
    assert failed.value.message == message


def test_rotation_is_the_leaders(app: App) -> None:
    app.deploy(2)
    with pytest.raises(testing.ActionFailed) as failed:
        app.act(1, "rotate-certificates")
    assert failed.value.message == "only the leader can; run it on istio-aux/leader"


def test_rotation_that_is_not_trusted_is_not_called_done(app: App, api: Api) -> None:
    app.deploy()
    first = app.kept().current
    api.broken = refusal(503)
    with pytest.raises(testing.ActionFailed) as failed:
        app.act(0, "rotate-certificates")
    assert failed.value.message.startswith("made, but not served yet: waiting for the Kubernetes API")
    assert app.served(0) == first.text
