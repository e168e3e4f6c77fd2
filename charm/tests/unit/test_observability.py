"""Data bags of the observability relations, and that rules and dashboard name what the webhook exposes."""

import base64
import json
import lzma
import pathlib
import re
from typing import Any

import pytest
from ops import ActiveStatus, testing

import observability
import webhook
from tests.unit.api import Api
from tests.unit.juju import App

REPOSITORY = pathlib.Path(__file__).parents[3]
UUID = "11111111-2222-4333-8444-555555555555"
DASHBOARD = json.loads((observability.DASHBOARDS / "istio-aux.json").read_text())


def related(app: App, endpoint: str, **data: Any) -> testing.Relation:
    """A relation, joined on every unit."""
    for unit in app.units:
        relation = testing.Relation(endpoint, id=5, remote_app_name="cos", **data)
        app.relate(unit, relation)
        on = app.contexts[unit].on
        app.run(unit, lambda state, on=on: on.relation_joined(state.get_relations(endpoint)[0]))
    return app.relation(0, endpoint)  # type: ignore[return-value]


def test_prometheus_gets_the_scrape_jobs(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "istio-aux-0.istio-aux-endpoints.kubeflow.svc.cluster.local")
    app.deploy(2)
    relation = related(app, "metrics-endpoint")
    jobs = json.loads(relation.local_app_data["scrape_jobs"])
    assert jobs == [{"metrics_path": "/metrics", "static_configs": [{"targets": ["*:8080"]}]}]
    assert json.loads(relation.local_app_data["scrape_metadata"]) == {
        "model": "kubeflow",
        "model_uuid": UUID,
        "application": "istio-aux",
        "unit": "istio-aux/0",
        "charm_name": "istio-aux",
    }
    assert (
        relation.local_unit_data.items()
        >= {
            "prometheus_scrape_unit_name": "istio-aux/0",
            "prometheus_scrape_unit_address": "istio-aux-0.istio-aux-endpoints.kubeflow.svc.cluster.local",
        }.items()
    )
    other = app.relation(1, "metrics-endpoint")
    assert other.local_unit_data["prometheus_scrape_unit_name"] == "istio-aux/1"  # type: ignore[attr-defined]
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
    assert app.relation(0, "grafana-dashboard").local_app_data["dashboards"] == first  # type: ignore[attr-defined]
    template = json.loads(first)["templates"]["file:istio-aux"]
    assert json.loads(lzma.decompress(base64.b64decode(template["content"]))) == DASHBOARD
    assert template["charm"] == "istio-aux"
    assert template["juju_topology"]["application"] == "istio-aux"


LOKI = {0: {"endpoint": json.dumps({"url": "http://loki-0:3100/loki/api/v1/push"})}, 1: {}, 2: {"endpoint": "{"}}


def test_log_goes_to_loki_while_related(app: App) -> None:
    app.deploy()
    relation = related(app, "logging", remote_units_data=LOKI)
    assert json.loads(relation.local_app_data["metadata"])["charm_name"] == "istio-aux"
    targets = app.container(0).plan.log_targets
    assert set(targets) == {"loki-5-cos-0"}
    target = targets["loki-5-cos-0"].to_dict()
    assert target.get("location") == "http://loki-0:3100/loki/api/v1/push"
    assert target.get("services") == ["all"]
    assert target.get("labels", {}).get("juju_unit") == "istio-aux/0"
    on = app.contexts[0].on
    app.run(0, lambda state: on.relation_broken(state.get_relations("logging")[0]))
    app.drop_relation(0, "logging")
    assert app.container(0).plan.log_targets["loki-5-cos-0"].services == ["-all"]
    plan = app.container(0).plan
    app.update(0)
    assert app.container(0).plan == plan
    related(app, "logging", remote_units_data=LOKI)
    assert app.container(0).plan.log_targets["loki-5-cos-0"].services == ["all"]


TLS_LOKI = {0: {"endpoint": json.dumps({"url": "https://loki/loki/api/v1/push"})}}
NO_CA = ActiveStatus("logs are not sent: Loki's address is https; relate receive-ca-cert to its CA")


def test_log_goes_to_tls_loki_once_its_ca_is_known(app: App) -> None:
    app.deploy()
    related(app, "logging", remote_units_data=TLS_LOKI)
    assert app.container(0).plan.log_targets == {}, "Pebble reads CAs once: it must not connect before it can trust"
    assert app.status() == NO_CA
    relation = testing.Relation(
        "receive-ca-cert",
        id=6,
        remote_app_name="ca",
        remote_app_data={"certificates": json.dumps(["CA two", "CA one"])},
    )
    app.relate(0, relation)
    on = app.contexts[0].on
    app.run(0, lambda state: on.relation_changed(state.get_relations("receive-ca-cert")[0]))
    bundle = app.root(0) / webhook.CA_BUNDLE.strip("/")
    assert bundle.read_text() == "CA one\nCA two\n"
    assert set(app.container(0).plan.log_targets) == {"loki-5-cos-0"}
    assert app.status() == ActiveStatus()
    written = bundle.stat().st_mtime_ns
    app.update(0)
    assert bundle.stat().st_mtime_ns == written, "an unchanged bundle is not written again"


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
    rules = [rule["expr"] for group in observability.read_rules()["groups"] for rule in group["rules"]]
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
    """Those of the tenancy controller apart, which the relation does not scrape, and of proxies beside pods."""
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
    chart = (REPOSITORY / "deploy/helm/istio-aux/rules.yaml").read_text()
    here = {rule["alert"] for group in observability.read_rules()["groups"] for rule in group["rules"]}
    # Juju's labels are on no metric of the API server.
    assert set(re.findall(r"alert: (\w+)", chart)) - {"IstioAuxUnreachable"} <= here
