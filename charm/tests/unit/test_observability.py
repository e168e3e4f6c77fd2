"""Data bags of the observability relations, and that rules and dashboard name what the webhook exposes."""

import base64
import json
import lzma
import pathlib
import re
import uuid

import pytest
from cosl import JujuTopology
from cosl.rules import Rules
from ops import testing

import observability
from tests.unit.api import Api
from tests.unit.juju import App

REPOSITORY = pathlib.Path(__file__).parents[3]
UUID = "11111111-2222-4333-8444-555555555555"
DASHBOARD = json.loads((observability.DASHBOARDS / "istio-aux.json").read_text())


RULES = Rules("promql")
RULES.add_path(observability.RULES)
ALERTS = [rule for group in RULES.as_dict()["groups"] for rule in group["rules"]]


def related(app: App, endpoint: str) -> testing.Relation:
    """A relation, joined on every unit."""
    for unit in app.units:
        app.relate(unit, testing.Relation(endpoint, id=5, remote_app_name="cos"), "relation_joined")
    return app.relation(0, endpoint)


def put_pod(api: Api, name: str, application: str, **status: str) -> None:
    labels = {"app.kubernetes.io/name": application}
    api.put("Pod", name, "kubeflow", metadata={"labels": labels}, spec={"containers": []}, status=status)


def test_prometheus_gets_the_pods_addresses(app: App, api: Api) -> None:
    app.deploy(2)
    put_pod(api, "one", "istio-aux-webhook", podIP="10.0.0.2")
    put_pod(api, "two", "istio-aux-webhook", podIP="fd00::2")
    put_pod(api, "starting", "istio-aux-webhook")
    put_pod(api, "evicted", "istio-aux-webhook", podIP="10.0.0.5", phase="Failed")
    put_pod(api, "completed", "istio-aux-webhook", podIP="10.0.0.6", phase="Succeeded")
    put_pod(api, "controller", "istio-aux-webhook-tenancy", podIP="10.0.0.3")
    put_pod(api, "unit", "istio-aux", podIP="10.0.0.4")
    relation = related(app, "metrics-endpoint")
    targets = ["10.0.0.2:8080", "10.0.0.3:8080", "[fd00::2]:8080"]
    jobs = [{"metrics_path": "/metrics", "static_configs": [{"targets": targets}]}]
    assert json.loads(relation.local_app_data["scrape_jobs"]) == jobs
    assert json.loads(relation.local_app_data["scrape_metadata"])["application"] == "istio-aux"
    other = app.relation(1, "metrics-endpoint")
    assert other.local_app_data == {}, "only the leader writes for the application"


def test_alert_rules_have_the_topology(app: App) -> None:
    app.deploy()
    groups = json.loads(related(app, "metrics-endpoint").local_app_data["alert_rules"])["groups"]
    assert [group["name"] for group in groups] == ["kubeflow_11111111_istio_aux_istio_aux_rules"]
    for rule in groups[0]["rules"]:
        assert rule["labels"].items() >= {"juju_model": "kubeflow", "juju_application": "istio-aux"}.items()
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_unchanged_dashboard_is_published_once(app: App) -> None:
    app.deploy()
    first = related(app, "grafana-dashboard").local_app_data["dashboards"]
    app.update(0)
    assert app.relation(0, "grafana-dashboard").local_app_data["dashboards"] == first
    template = json.loads(first)["templates"]["file:istio-aux"]
    assert json.loads(lzma.decompress(base64.b64decode(template["content"]))) == DASHBOARD
    assert {key: template[key] for key in template if key != "content"} == {
        "charm": "istio-aux",
        "inject_dropdowns": True,
        "juju_topology": {
            "model": "kubeflow",
            "model_uuid": UUID,
            "application": "istio-aux",
            "unit": "istio-aux/0",
        },
    }


def test_changed_dashboard_has_another_id(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    topology = JujuTopology("kubeflow", UUID, "istio-aux", charm_name="istio-aux")
    monkeypatch.setattr(observability, "DASHBOARDS", tmp_path)
    versions = []
    for text in ("{}", "{}", '{"title": "other"}'):
        (tmp_path / "one.json").write_text(text)
        versions.append(uuid.UUID(json.loads(observability.dashboard_data(topology)["dashboards"])["uuid"]))
    assert versions[0] == versions[1] != versions[2]


def test_every_unit_sends_traces_of_its_hooks(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.deploy(2)
    destinations: list[dict[str, str | None]] = []
    monkeypatch.setattr("ops.tracing.set_destination", lambda **destination: destinations.append(destination))
    tempo = [{"protocol": {"name": "otlp_http", "type": "http"}, "url": "http://tempo:4318"}]
    data = {"receivers": json.dumps(tempo)}
    for unit in app.units:
        relation = testing.Relation("charm-tracing", id=5, remote_app_name="tempo", remote_app_data=data)
        app.relate(unit, relation, "relation_changed")
    assert json.loads(app.relation(0, "charm-tracing").local_app_data["receivers"]) == ["otlp_http"]
    assert "receivers" not in app.relation(1, "charm-tracing").local_app_data, "only the leader asks"
    assert destinations == [{"url": "http://tempo:4318/v1/traces", "ca": None}] * 2, "every unit sends its own"


def test_traces_go_to_a_tempo_with_a_certificate_of_a_ca(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.deploy()
    destinations: list[dict[str, str | None]] = []
    monkeypatch.setattr("ops.tracing.set_destination", lambda **destination: destinations.append(destination))
    data = {"certificates": json.dumps(["the CA"]), "version": "1"}
    app.relate(0, testing.Relation("receive-ca-cert", id=6, remote_app_name="ca", remote_app_data=data))
    tempo = [{"protocol": {"name": "otlp_http", "type": "http"}, "url": "https://tempo:4318"}]
    data = {"receivers": json.dumps(tempo)}
    tempo_relation = testing.Relation("charm-tracing", id=5, remote_app_name="tempo", remote_app_data=data)
    app.relate(0, tempo_relation, "relation_changed")
    assert destinations[-1] == {"url": "https://tempo:4318/v1/traces", "ca": "the CA"}


def exposed() -> set[str]:
    """Returns the metrics of webhook and controller, by code and documents, with the format's suffixes."""
    source = "".join((REPOSITORY / file / "src/metrics.rs").read_text() for file in ("webhook", "controller"))
    prefix = re.search(r'Registry::with_prefix\("(\w+)"\)', source)
    assert prefix
    registered = re.findall(r'registry(?:\.register\(|,)\s*"(\w+)"', source)
    documented = set(re.findall(r"^\| `(istio_aux_\w+)` \|", (REPOSITORY / "docs/configuration.md").read_text(), re.M))
    names = {f"{prefix[1]}_{name}" for name in registered}
    assert {re.sub("_(total|info)$", "", name) for name in documented} == names
    counters = {name for name in documented if name.endswith("_total")}
    histograms = {f"{name}{end}" for name in documented if "duration" in name for end in ("_bucket", "_sum", "_count")}
    gauges = {name for name in documented if re.search("timestamp|_info$|_leader$|_namespaces$", name)}
    return counters | histograms | gauges


def queries() -> list[str]:
    rules = [rule["expr"] for rule in ALERTS]
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    assert len(rules) >= 4
    assert len(panels) >= 6
    return [*rules, *panels]


@pytest.mark.parametrize("query", queries())
def test_query_names_only_exposed_metrics(query: str) -> None:
    named = set(re.findall(r"\b(istio_aux_\w+|up)\b", query))
    assert named
    assert named <= exposed() | {"up"}


def test_every_metric_is_shown() -> None:
    """Those of the tenancy controller and of proxies beside pods apart."""
    shown = {name for query in queries() for name in re.findall(r"istio_aux_\w+", query)}

    def of_the_charm(names: set[str]) -> set[str]:
        here = (name for name in names if not re.search("_(tenancy|node)_", name))
        return {re.sub("_(bucket|sum|count)$", "", name) for name in here}

    assert of_the_charm(exposed()) == of_the_charm(shown)


def test_panels_use_datasource_variables() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"].strip("${}") in variables | {"prometheusds"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_alerts_of_the_chart_are_here_too(api: Api) -> None:
    chart = "".join(each.read_text() for each in (REPOSITORY / "deploy/helm/istio-aux").glob("rules*.yaml"))
    here = {rule["alert"] for rule in ALERTS}
    # Juju's labels are on no metric of the API server.
    assert set(re.findall(r"alert: (\w+)", chart)) - {"IstioAuxUnreachable", "IstioAuxSkipped"} <= here
