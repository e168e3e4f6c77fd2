"""The actions, and the one line with which each fails."""

from typing import Any

import httpx2
import pytest
from ops import ActiveStatus

from actions import LINES
from tests.unit.api import Api, api_error
from tests.unit.juju import SHIM, App

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
    api.put("Pod", "of-a-deleted-namespace", "gone", spec={"containers": [MAIN]})
    app.deploy()
    return app


def test_selector_that_is_not_in_force_selects_no_pods(missed: App, api: Api) -> None:
    api.put("Namespace", "team", metadata={"labels": {"profile": "", "istio-injection": "enabled"}})
    missed.config = {"namespace-selector": "profile", **SHIM}
    assert missed.act(0, "list-uninjected-pods")["no-hold"] == 1
    missed.config = {"namespace-selector": "profile"}
    assert missed.act(0, "list-uninjected-pods")["count"] == 0


def test_uninjected_pods_are_listed_with_owners(missed: App) -> None:
    results = missed.act(0, "list-uninjected-pods")
    assert {key: results[key] for key in ("count", "no-hold", "no-shim", "no-sidecar")} == {
        "count": 7,
        "no-hold": 1,
        "no-shim": 1,
        "no-sidecar": 5,
    }
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


REPLACED = [
    "team/Pod/db-0 no-sidecar team/StatefulSet/db",
    "team/Pod/early-0 no-hold team/DaemonSet/early",
    "team/Pod/lost-a no-sidecar team/ReplicaSet/gone",
    "team/Pod/web-1-a no-sidecar team/Deployment/web",
    "team/Pod/web-1-b no-sidecar team/Deployment/web",
]
BY_HAND = "team/Pod/alone no-sidecar -\nteam/Pod/job-a no-shim team/Job/job"


def test_restart_is_a_dry_run_by_default(missed: App, api: Api) -> None:
    writes = len(api.writes)
    results = missed.act(0, "restart-uninjected-pods", namespace="team")
    others = {"not-evicted-now": "", "failed": "", "to-delete-by-hand": BY_HAND}
    assert results == {"would-evict": "\n".join(REPLACED), **others}
    assert len(api.writes) == writes


def test_only_pods_that_miss_something_are_evicted(missed: App, api: Api) -> None:
    before = len(api.writes)
    api.held.add("db-0")
    results = missed.act(0, "restart-uninjected-pods", **{"dry-run": False})
    assert results == {
        "evicted": "\n".join(REPLACED[1:]),
        "not-evicted-now": REPLACED[0],
        "failed": "",
        "to-delete-by-hand": BY_HAND,
    }
    evicted = [f"Pod/{name}" for name in ("early-0", "lost-a", "web-1-a", "web-1-b")]
    assert sorted(name for _, name in api.writes[before:]) == evicted, "no workload is written"


def test_failed_evictions_are_listed_with_their_reasons(missed: App, api: Api) -> None:
    api.evictions["db-0"] = api_error(403, 'admission webhook "guard.example" denied the request:\n  protected')
    api.evictions["early-0"] = httpx2.ConnectError("refused")
    api.evictions["lost-a"] = api_error(404)
    results = missed.act(0, "restart-uninjected-pods", **{"dry-run": False})
    assert results == {
        "evicted": "\n".join(REPLACED[2:]),
        "not-evicted-now": "",
        "failed": f'{REPLACED[0]}: admission webhook "guard.example" denied the request: protected\n'
        f"{REPLACED[1]}: refused",
        "to-delete-by-hand": BY_HAND,
    }


def test_reasons_stay_below_what_juju_takes(missed: App, api: Api) -> None:
    for number in range(LINES):
        put_pod(api, f"more-{number:03}", ("StatefulSet", "more"), MAIN, restart="Always")
        api.evictions[f"more-{number:03}"] = api_error(422, "why " * 1000)
    failed = missed.act(0, "restart-uninjected-pods", **{"dry-run": False})["failed"]
    assert len(failed.splitlines()) == LINES
    assert len(failed) < 128 << 10


def test_failed_pod_is_not_counted(missed: App, api: Api) -> None:
    api.get("Pod", "alone", "team")["status"] = {"phase": "Failed"}
    assert missed.act(0, "list-uninjected-pods")["count"] == 6


def test_result_stays_below_what_juju_takes(missed: App, api: Api) -> None:
    for number in range(2000):
        put_pod(api, f"{'x' * 200}-{number:04}", ("StatefulSet", "x" * 200), MAIN, restart="Always")
    results = missed.act(0, "list-uninjected-pods")
    assert results["count"] == 2007
    lines = results["pods"].splitlines()
    assert len(lines) == LINES + 1
    assert lines[-1] == f"and {2007 - LINES} more; narrow it with namespace="
    assert max(len(str(value)) for value in results.values()) < 100 << 10


def test_result_of_as_many_pods_as_fit_names_all(missed: App, api: Api) -> None:
    for number in range(LINES - 7):
        put_pod(api, f"more-{number:03}", ("StatefulSet", "more"), MAIN, restart="Always")
    assert len(missed.act(0, "list-uninjected-pods")["pods"].splitlines()) == LINES
    assert "narrow it" not in missed.act(0, "list-uninjected-pods")["pods"]


def test_status_says_what_pods_miss(missed: App, api: Api) -> None:
    api.rejected["ReplicaSet"] = AssertionError("a count needs no owner")
    missed.update(0)
    expected = "pods that miss something: 1 no-hold, 1 no-shim, 5 no-sidecar; see the action list-uninjected-pods"
    assert missed.status().message == expected


def test_status_joins_what_leaves_the_unit_active(missed: App) -> None:
    missed.config = {"require-sidecar": True, "namespaces": "later", **SHIM}
    missed.update(0)
    assert missed.status() == ActiveStatus(
        "namespaces not found: later; they are labelled once they exist; "
        "sidecars required, except for istiod and istio, istio-k8s, istio-pilot; "
        "pods that miss something: 1 no-hold, 1 no-shim, 5 no-sidecar; see the action list-uninjected-pods"
    )


def test_enabled_namespace_stays_enabled(app: App, api: Api) -> None:
    app.deploy()
    assert app.act(0, "enable-namespace", namespace="team") == {"namespace": "team", "enabled": "yes"}
    app.update(0)
    assert api.labels("team") == OPT_IN
    app.act(0, "enable-namespace", namespace="team")
    assert api.labels("team") == OPT_IN
    assert app.act(0, "disable-namespace", namespace="team") == {"namespace": "team", "changed": "yes"}
    assert api.labels("team") == {}
    app.update(0)
    assert api.labels("team") == {}


def test_namespace_that_the_selector_selects_can_be_opted_out(app: App, api: Api) -> None:
    api.put("Namespace", "team", metadata={"labels": {"profile": "a"}})
    app.deploy(config={"namespace-selector": "profile"})
    app.act(0, "enable-namespace", namespace="team")
    advice = "the option namespace-selector selects team: label it istio-aux.io/injection=disabled"
    assert app.failure(0, "disable-namespace", namespace="team") == advice
    opted_out = {"profile": "a", "istio-aux.io/injection": "disabled"}
    api.get("Namespace", "team")["metadata"]["labels"] = dict(opted_out)
    app.update(0)
    assert api.labels("team") == opted_out, "the action is no longer in force"
    assert app.act(0, "disable-namespace", namespace="team")["changed"] == "no, it was not enabled"
    app.act(0, "enable-namespace", namespace="team")
    assert app.act(0, "disable-namespace", namespace="team")["changed"] == "yes"
    assert api.labels("team") == opted_out, "the label before is restored"


def test_deleted_namespace_is_forgotten(app: App, api: Api) -> None:
    app.deploy()
    app.act(0, "enable-namespace", namespace="team")
    del api.objects["Namespace", None, "team"]
    app.update(0)
    assert app.status().message.startswith("namespaces not found: team")
    results = app.act(0, "disable-namespace", namespace="team")
    assert results["changed"] == "yes; it does not exist any more"
    api.put("Namespace", "team")
    app.update(0)
    assert api.labels("team") == {}, "another namespace of the name is somebody else's"


def test_rejected_label_fails_the_action(app: App, api: Api) -> None:
    app.deploy()
    api.refused.add("team")
    rejected = "the Kubernetes API rejects this: labels are owned by the platform"
    assert app.failure(0, "enable-namespace", namespace="team") == rejected
    api.refused.clear()
    app.update(0)
    assert api.labels("team") == {}, "what has failed is not in force"
    app.act(0, "enable-namespace", namespace="team")
    api.refused.add("team")
    assert app.failure(0, "disable-namespace", namespace="team") == rejected
    api.refused.clear()
    assert app.act(0, "disable-namespace", namespace="team")["changed"] == "yes", "it is not forgotten meanwhile"
    assert api.labels("team") == {}


def test_rejected_label_of_another_namespace_fails_no_action(app: App, api: Api) -> None:
    api.put("Namespace", "other")
    api.refused.add("other")
    app.deploy(config={"namespaces": "other"})
    assert app.act(0, "enable-namespace", namespace="team")["enabled"] == "yes"
    assert app.status().message == "namespaces not labelled: other: labels are owned by the platform"
    assert app.act(0, "disable-namespace", namespace="team")["changed"] == "yes"
    assert api.labels("team") == {}


def test_disabled_namespace_keeps_labels_of_other_owners(app: App, api: Api) -> None:
    api.put("Namespace", "team", metadata={"labels": MESH})
    app.deploy()
    assert app.act(0, "disable-namespace", namespace="team")["changed"] == "yes"
    assert api.labels("team") == {"istio-injection": "enabled"}
    assert app.act(0, "disable-namespace", namespace="team")["changed"] == "no, it was not enabled"


def test_option_and_action_may_both_name_a_namespace(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "team"})
    app.act(0, "enable-namespace", namespace="team", **{"istio-injection": True})
    app.update(0)
    assert api.labels("team") == MESH, "the option takes nothing from the action"
    app.config = dict(SHIM)
    app.update(0)
    assert api.labels("team") == MESH, "the action stays in force without the option"
    app.act(0, "disable-namespace", namespace="team")
    assert api.labels("team") == {}


def test_disabling_labels_nothing_without_a_shim_image(app: App, api: Api) -> None:
    api.put("Namespace", "other")
    app.deploy(config={"namespaces": "other"})
    app.act(0, "enable-namespace", namespace="team")
    app.config = {"namespaces": "other"}
    app.update(0)
    app.act(0, "disable-namespace", namespace="team")
    assert api.labels("other") == {}
    app.config = dict(SHIM)
    app.update(0)
    assert api.labels("team") == {}, "it was forgotten"


@pytest.mark.parametrize("before", [{}, {"istio-aux.io/injection": "disabled", "istio-injection": "no"}])
def test_labels_before_are_restored_without_the_application(app: App, api: Api, before: dict[str, str]) -> None:
    api.put("Namespace", "team", metadata={"labels": before})
    app.deploy()
    app.act(0, "enable-namespace", namespace="team", **{"istio-injection": True})
    assert api.labels("team") == MESH
    app.planned = 0
    app.update(0)
    assert api.labels("team") == before


def test_value_changed_since_is_kept(app: App, api: Api) -> None:
    app.deploy(config={"namespaces": "team"})
    api.labels("team")["istio-aux.io/injection"] = "disabled"
    app.planned = 0
    app.update(0)
    assert api.labels("team") == {"istio-aux.io/injection": "disabled"}


def test_pods_of_selected_namespaces_are_listed(missed: App, api: Api) -> None:
    api.put("Namespace", "team", metadata={"labels": {"istio-injection": "enabled", "profile": "a"}})
    assert missed.act(0, "list-uninjected-pods")["count"] == 0
    missed.config = {"namespace-selector": "profile", **SHIM}
    assert missed.act(0, "list-uninjected-pods")["count"] == 7


def test_rotation_asks_the_webhook(app: App, api: Api) -> None:
    app.deploy(2)
    assert app.act(1, "rotate-certificates")["rotated"].startswith("requested; ")
    secret = api.get("Secret", "istio-aux-webhook-certificate", "kubeflow")
    assert list(secret["metadata"]["annotations"]) == ["istio-aux.io/renewal-requested"]


@pytest.mark.parametrize("action", ["enable-namespace", "disable-namespace", "rotate-certificates"])
def test_action_changes_nothing_beside_another_installation(app: App, api: Api, action: str) -> None:
    app.deploy()
    app.act(0, "enable-namespace", namespace="team")
    second = App("aux")
    second.deploy()
    before = dict(api.objects)
    params = {} if action == "rotate-certificates" else {"namespace": "team"}
    message = "application istio-aux of model kubeflow is istio-aux already; remove one of the two"
    assert second.failure(0, action, **params) == message
    assert api.objects == before


def test_rotation_fails_without_the_webhook(app: App) -> None:
    app.resources = frozenset()
    app.deploy()
    message = "the webhook is not installed yet; juju status says why"
    assert app.failure(0, "rotate-certificates") == message


FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("list-uninjected-pods", {"namespace": "gone"}, "namespace not found: gone"),
    ("restart-uninjected-pods", {"namespace": "gone"}, "namespace not found: gone"),
    ("enable-namespace", {"namespace": "gone"}, "namespace not found: gone"),
    (
        "enable-namespace",
        {"namespace": "ambient", "istio-injection": True},
        "namespace ambient is in the ambient mesh: a sidecar would take its pods out of it",
    ),
    (
        "enable-namespace",
        {"namespace": "revision", "istio-injection": True},
        "namespace revision has sidecars by its label istio.io/rev: leave out istio-injection",
    ),
    ("enable-namespace", {"namespace": "kube-system"}, "kube-system cannot be opted in"),
    ("disable-namespace", {"namespace": "gone"}, "namespace not found: gone"),
    ("disable-namespace", {"namespace": ""}, "namespace not found: "),
    ("enable-namespace", {"namespace": ""}, "namespace not found: "),
    ("disable-namespace", {"namespace": "listed"}, "the option namespaces lists listed: remove it there"),
    ("disable-namespace", {"namespace": "both"}, "the option namespaces lists both: remove it there"),
    (
        "disable-namespace",
        {"namespace": "profile"},
        "the option namespace-selector selects profile: label it istio-aux.io/injection=disabled",
    ),
]


@pytest.mark.parametrize(("action", "params", "message"), FAILURES)
def test_failed_action_changes_nothing(app: App, api: Api, action: str, params: dict[str, Any], message: str) -> None:
    for name in ("listed", "kube-system"):
        api.put("Namespace", name)
    api.put("Namespace", "ambient", metadata={"labels": {"istio.io/dataplane-mode": "ambient"}})
    api.put("Namespace", "revision", metadata={"labels": {"istio.io/rev": "canary"}})
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


def test_namespace_is_opted_out_while_no_options_are_valid(app: App, api: Api) -> None:
    api.put("Namespace", "team", metadata={"labels": OPT_IN})
    app.deploy(config={"log-level": "loud"})
    assert app.act(0, "disable-namespace", namespace="team")["changed"] == "yes"
    assert api.labels("team") == {}
    assert app.failure(0, "enable-namespace", namespace="team") == app.status().message


@pytest.mark.parametrize("action", ["enable-namespace", "disable-namespace"])
def test_opting_in_and_out_is_the_leaders(app: App, action: str) -> None:
    app.deploy(2)
    assert app.failure(1, action, namespace="team") == "only the leader can do this; run it on istio-aux/leader"
