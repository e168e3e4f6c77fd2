"""The actions, and the one line with which each fails."""

import json
from typing import Any

import pytest
from ops import testing

from tests.unit.api import Api, api_error
from tests.unit.juju import App, Clock
from tests.unit.seen import trusted

MESH = {"istio-aux.io/injection": "enabled", "istio-injection": "enabled"}
OPT_IN = {"istio-aux.io/injection": "enabled"}
EXCLUDED = "traffic.sidecar.istio.io/excludeOutboundPorts"
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
    for kind, name in (("Deployment", "web"), ("StatefulSet", "db"), ("DaemonSet", "early")):
        api.put(kind, name, "team", spec={"selector": {}, "template": {"metadata": {"labels": {}}}, "serviceName": ""})
    put_pod(api, "web-1-a", ("ReplicaSet", "web-1"), MAIN, restart="Always")
    put_pod(api, "web-1-b", ("ReplicaSet", "web-1"), MAIN, restart="Always")
    put_pod(api, "lost-a", ("ReplicaSet", "gone"), MAIN, restart="Always")
    put_pod(api, "db-0", ("StatefulSet", "db"), MAIN, restart="Always")
    put_pod(api, "well-0", ("StatefulSet", "well"), MAIN, PROXY, restart="Always")
    api.get("Pod", "well-0", "team")["metadata"]["annotations"] = {
        "proxy.istio.io/config": '{"holdApplicationUntilProxyStarts": true}'
    }
    put_pod(api, "early-0", ("DaemonSet", "early"), MAIN, PROXY, restart="Always")
    put_pod(api, "job-a", ("Job", "job"), MAIN, PROXY, restart="Never")
    put_pod(api, "alone", None, MAIN, restart="Always")
    app.deploy()
    return app


def test_uninjected_pods_are_listed_with_owners(missed: App) -> None:
    results = missed.act(0, "list-uninjected-pods")
    assert results["count"] == 7
    assert results["pods"].splitlines() == [
        "team/Pod/alone no-sidecar -",
        "team/Pod/db-0 no-sidecar team/StatefulSet/db",
        "team/Pod/early-0 no-hold team/DaemonSet/early",
        "team/Pod/job-a no-shim team/Job/job",
        "team/Pod/lost-a no-sidecar team/ReplicaSet/gone",
        "team/Pod/web-1-a no-sidecar team/Deployment/web",
        "team/Pod/web-1-b no-sidecar team/Deployment/web",
    ]


def test_uninjected_pods_of_one_namespace_are_listed(missed: App, api: Api) -> None:
    api.put("Namespace", "other", metadata={"labels": MESH})
    api.put("Pod", "one", "other", spec={"containers": [MAIN], "restartPolicy": "Always"})
    assert missed.act(0, "list-uninjected-pods")["count"] == 8
    assert missed.act(0, "list-uninjected-pods", namespace="other")["pods"] == "other/Pod/one no-sidecar -"


RESTARTABLE = "team/DaemonSet/early\nteam/Deployment/web\nteam/StatefulSet/db"
BY_HAND = "team/Job/job\nteam/Pod/alone\nteam/ReplicaSet/gone"


def test_restart_is_a_dry_run_by_default(missed: App, api: Api) -> None:
    writes = len(api.writes)
    results = missed.act(0, "restart-uninjected-pods", namespace="team")
    assert results == {"would-restart": RESTARTABLE, "to-delete-by-hand": BY_HAND}
    assert len(api.writes) == writes


def test_each_owner_is_restarted_once(missed: App, api: Api) -> None:
    before = len(api.writes)
    results = missed.act(0, "restart-uninjected-pods", **{"dry-run": False})
    assert results == {"restarted": RESTARTABLE, "to-delete-by-hand": BY_HAND}
    assert api.writes[before:] == [
        ("patch", "DaemonSet/early"),
        ("patch", "Deployment/web"),
        ("patch", "StatefulSet/db"),
    ]
    annotations = api.get("Deployment", "web", "team")["spec"]["template"]["metadata"]["annotations"]
    assert list(annotations) == ["kubectl.kubernetes.io/restartedAt"]


def test_enabled_namespace_stays_enabled(app: App, api: Api) -> None:
    app.deploy()
    assert app.act(0, "enable-namespace", namespace="team") == {"namespace": "team", "changed": "yes"}
    app.update(0)
    assert api.labels("team") == OPT_IN
    again = app.act(0, "enable-namespace", namespace="team")
    assert again == {"namespace": "team", "changed": "no, it was enabled"}


def test_istio_injection_is_enabled_and_removed_with_application(app: App, api: Api) -> None:
    app.deploy()
    app.act(0, "enable-namespace", namespace="team", **{"istio-injection": True})
    assert api.labels("team") == MESH
    app.planned = 0
    app.update(0)
    assert api.labels("team") == {}


def test_enabling_the_model_excludes_its_operator(app: App, api: Api) -> None:
    app.deploy()
    app.act(0, "enable-namespace", namespace="kubeflow")
    for kind, name in (("Deployment", "modeloperator"), ("StatefulSet", "istio-aux")):
        labels = api.get(kind, name, "kubeflow")["spec"]["template"]["metadata"]["labels"]
        assert labels == {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
    patched = [name for verb, name in api.writes if verb == "patch" and not name.startswith("Pod/")]
    assert patched == ["Deployment/modeloperator", "StatefulSet/istio-aux", "Namespace/kubeflow"]


def test_chosen_workloads_are_enabled_by_template(missed: App, api: Api) -> None:
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


def test_disabled_namespace_keeps_labels_of_other_owners(app: App, api: Api) -> None:
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
    assert app.act(0, "rotate-certificates") == {"rotated": "yes; other units follow at their next event"}
    assert app.kept().current != first
    assert app.served(0) == app.kept().current.text
    assert first.ca.strip() in trusted(api)


@pytest.mark.parametrize(
    ("addresses", "before", "ports"),
    [
        ("", {}, "17070"),
        ("10.0.0.1:17070 10.0.0.2:17070", {}, "17070"),
        ("controller.example:443 [fd00::1]:17070", {}, "17070,443"),
        ("", {EXCLUDED: "5432"}, "5432,17070"),
    ],
)
def test_charms_pod_bypasses_proxy_to_its_controller(
    app: App, api: Api, monkeypatch: pytest.MonkeyPatch, addresses: str, before: dict[str, str], ports: str
) -> None:
    monkeypatch.setattr("actions.os.environ", {"JUJU_API_ADDRESSES": addresses})
    template = {
        "metadata": {"labels": {}, "annotations": before},
        "spec": {"initContainers": [{"name": "charm-init"}], "containers": []},
    }
    api.put("StatefulSet", "katib", "team", spec={"selector": {}, "template": template, "serviceName": ""})
    app.deploy()
    app.act(0, "enable-namespace", namespace="team", workloads="katib")
    template = api.get("StatefulSet", "katib", "team")["spec"]["template"]
    assert template["metadata"]["annotations"] == {EXCLUDED: ports}
    app.act(0, "disable-namespace", namespace="team")
    template = api.get("StatefulSet", "katib", "team")["spec"]["template"]
    assert template["metadata"] == {"labels": {}, "annotations": before}


def test_option_and_action_may_both_name_a_namespace(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "team"})
    assert app.act(0, "enable-namespace", namespace="team")["changed"] == "yes"
    app.config = {}
    app.update(0)
    assert api.labels("team") == OPT_IN, "the action stays in force without the option"
    app.act(0, "disable-namespace", namespace="team")
    assert api.labels("team") == {}


def test_previous_value_is_restored(app: App, api: Api) -> None:
    api.put("Namespace", "team", metadata={"labels": {"istio-aux.io/injection": "disabled", "istio-injection": "no"}})
    app.deploy()
    app.act(0, "enable-namespace", namespace="team", **{"istio-injection": True})
    assert api.labels("team") == MESH
    app.planned = 0
    app.update(0)
    assert api.labels("team") == {"istio-aux.io/injection": "disabled", "istio-injection": "no"}


def test_value_changed_since_is_kept(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "team"})
    api.labels("team")["istio-aux.io/injection"] = "disabled"
    app.planned = 0
    app.update(0)
    assert api.labels("team") == {"istio-aux.io/injection": "disabled"}


def test_pods_of_selected_namespaces_are_listed(missed: App, api: Api) -> None:
    api.put("Namespace", "team", metadata={"labels": {"istio-injection": "enabled", "profile": "a"}})
    assert missed.act(0, "list-uninjected-pods")["count"] == 0
    missed.config = {"namespace-selector": "profile"}
    assert missed.act(0, "list-uninjected-pods")["count"] == 7


EXCLUDED_FROM_THE_MESH = "cannot be in the mesh: the API server calls its pods directly"
FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("list-uninjected-pods", {"namespace": "gone"}, "namespace not found: gone"),
    ("restart-uninjected-pods", {"namespace": "gone"}, "namespace not found: gone"),
    ("enable-namespace", {"namespace": "gone"}, "namespace not found: gone"),
    ("disable-namespace", {"namespace": "gone"}, "namespace not found: gone"),
    ("disable-namespace", {"namespace": "listed"}, "the option namespaces lists listed: remove it there"),
    ("disable-namespace", {"namespace": "both"}, "the option namespaces lists both: remove it there"),
    (
        "disable-namespace",
        {"namespace": "theirs"},
        "the option namespaces of other/aux lists theirs: remove it there",
    ),
    (
        "disable-namespace",
        {"namespace": "profile"},
        "the option namespace-selector selects profile: label it istio-aux.io/injection=disabled",
    ),
    (
        "enable-namespace",
        {"namespace": "team", "workloads": "modeloperator"},
        f"modeloperator {EXCLUDED_FROM_THE_MESH}",
    ),
    (
        "enable-namespace",
        {"namespace": "kubeflow", "workloads": "modeloperator,istio-aux"},
        f"istio-aux, modeloperator {EXCLUDED_FROM_THE_MESH}",
    ),
    (
        "enable-namespace",
        {"namespace": "team", "workloads": "db, nothing, none"},
        "namespace team has no StatefulSet or Deployment nothing, none",
    ),
    (
        "enable-namespace",
        {"namespace": "team", "workloads": "db", "istio-injection": True},
        "workloads and istio-injection exclude each other: istio-injection is for the whole namespace",
    ),
]


@pytest.mark.parametrize(("action", "params", "message"), FAILURES)
def test_failed_action_changes_nothing(app: App, api: Api, action: str, params: dict[str, Any], message: str) -> None:
    api.put("Namespace", "listed")
    api.put("StatefulSet", "db", "team", spec={"selector": {}, "template": {}, "serviceName": ""})
    theirs = {"application": "other/aux", "source": "config", "labels": {}, "annotations": {}}
    annotations = {"istio-aux.io/labelled-by": json.dumps(theirs)}
    api.put("Namespace", "theirs", metadata={"labels": OPT_IN, "annotations": annotations})
    api.put("Namespace", "both", metadata={"labels": OPT_IN})
    api.put("Namespace", "profile", metadata={"labels": {"part-of": "profile"}})
    app.deploy(config={"namespaces": "listed,both", "namespace-selector": "part-of=profile"})
    writes = len(api.writes)
    assert app.failure(0, action, **params) == message
    assert len(api.writes) == writes


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (api_error(403), "no rights in the cluster; run: juju trust istio-aux --scope=cluster"),
        (api_error(503, "busy"), "the Kubernetes API does not answer; try again: busy"),
        (api_error(422, "odd"), "the Kubernetes API rejects this: odd"),
    ],
)
def test_action_says_how_the_cluster_fails(app: App, api: Api, failure: Exception, message: str) -> None:
    app.deploy()
    api.broken = failure
    assert app.failure(0, "list-uninjected-pods") == message


def test_rotation_is_the_leaders(app: App) -> None:
    app.deploy(2)
    assert app.failure(1, "rotate-certificates") == "only the leader can rotate; run it on istio-aux/leader"


def test_untrusted_rotation_fails(app: App, api: Api) -> None:
    app.deploy()
    first = app.kept().current
    api.broken = api_error(503)
    with pytest.raises(testing.ActionFailed) as failed:
        app.act(0, "rotate-certificates")
    assert failed.value.message.startswith("issued, but not served yet: waiting for the Kubernetes API")
    assert app.served(0) == first.text
