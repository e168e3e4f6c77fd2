"""Data bags of prometheus_scrape, grafana_dashboard and loki_push_api, as their interface documents specify them.

What is in a bag is pure; `Observability` writes and reads bags. README.md says why no library does this.
"""

import base64
import json
import lzma
import pathlib
import socket
import uuid
from collections.abc import Callable, Mapping
from typing import Any, cast

import ops
import yaml
from ops import pebble

from application import Application
from webhook import HEALTH_PORT

PROMETHEUS, GRAFANA, LOKI = "metrics-endpoint", "grafana-dashboard", "logging"
CHARM = "istio-aux"

_HERE = pathlib.Path(__file__).parent
RULES = _HERE / "prometheus_alert_rules"
DASHBOARDS = _HERE / "grafana_dashboards"

Bag = dict[str, str]


def topology(application: Application, unit: str) -> dict[str, str]:
    """Who this is, as the observability charms call it."""
    return {
        "model": application.model,
        "model_uuid": application.model_uuid,
        "application": application.name,
        "unit": unit,
        "charm_name": CHARM,
    }


def scrape_data(application: Application, unit: str, rules: Mapping[str, Any]) -> Bag:
    """The application's bag of prometheus_scrape. Prometheus puts each unit's address in place of the star."""
    job = {"metrics_path": "/metrics", "static_configs": [{"targets": [f"*:{HEALTH_PORT}"]}]}
    return {
        "scrape_jobs": json.dumps([job]),
        "scrape_metadata": json.dumps(topology(application, unit)),
        "alert_rules": json.dumps(labelled(application, rules)),
    }


def scrape_unit_data(unit: str, address: str) -> Bag:
    """A unit's bag of prometheus_scrape."""
    return {"prometheus_scrape_unit_name": unit, "prometheus_scrape_unit_address": address}


def labelled(application: Application, rules: Mapping[str, Any]) -> dict[str, Any]:
    """Alert rules that say whose they are. Prometheus limits their queries to these labels."""
    labels = {
        "juju_model": application.model,
        "juju_model_uuid": application.model_uuid,
        "juju_application": application.name,
        "juju_charm": CHARM,
    }
    prefix = "_".join((application.model, application.model_uuid[:8], application.name))
    return {
        "groups": [
            {
                "name": f"{prefix}_{group['name']}_alerts",
                "rules": [{**rule, "labels": {**rule["labels"], **labels}} for rule in group["rules"]],
            }
            for group in rules["groups"]
        ]
    }


def dashboard_data(application: Application, unit: str, dashboards: Mapping[str, str]) -> Bag:
    """The application's bag of grafana_dashboard: each dashboard compressed, and an id that changes with them."""
    origin = {key: value for key, value in topology(application, unit).items() if key != "charm_name"}
    templates = {
        f"file:{name}": {
            "charm": CHARM,
            "content": base64.b64encode(lzma.compress(text.encode())).decode(),
            "inject_dropdowns": True,
            "juju_topology": origin,
        }
        for name, text in sorted(dashboards.items())
    }
    version = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(templates, sort_keys=True))
    return {"dashboards": json.dumps({"templates": templates, "uuid": str(version)})}


def loki_data(application: Application, unit: str) -> Bag:
    """The application's bag of loki_push_api. No alert of this charm asks Loki."""
    return {"metadata": json.dumps(topology(application, unit)), "alert_rules": json.dumps({})}


def push_url(bag: Mapping[str, str]) -> str | None:
    """Where a unit of Loki takes logs; None where it does not say, or not yet."""
    try:
        return str(json.loads(bag["endpoint"])["url"])
    except (KeyError, TypeError, ValueError):
        return None


def log_target(application: Application, unit: str, url: str) -> pebble.LogTargetDict:
    """Where Pebble is to send a unit's log."""
    origin = topology(application, unit)
    labels = {f"juju_{key}": origin[key] for key in ("model", "model_uuid", "application", "unit")}
    return {
        "override": "replace",
        "type": "loki",
        "location": url,
        "services": ["all"],
        "labels": {"product": "Juju", "charm": CHARM, **labels},
    }


class Observability:
    """The relations with Prometheus, Grafana and Loki."""

    def __init__(self, charm: ops.CharmBase, application: Application) -> None:
        self._charm = charm
        self._application = application

    def publish(self) -> None:
        """Write what each of them is to know."""
        unit = self._charm.unit.name
        scrape_unit = scrape_unit_data(unit, socket.getfqdn())
        for relation in self._charm.model.relations[PROMETHEUS]:
            relation.data[self._charm.unit].update(scrape_unit)
        if not self._charm.unit.is_leader():
            return
        # Files are read, and dashboards compressed, for those only who are there.
        bags: dict[str, Callable[[], Bag]] = {
            PROMETHEUS: lambda: scrape_data(self._application, unit, read_rules()),
            GRAFANA: lambda: dashboard_data(self._application, unit, read_dashboards()),
            LOKI: lambda: loki_data(self._application, unit),
        }
        for name, bag in bags.items():
            for relation in self._charm.model.relations[name]:
                relation.data[self._charm.app].update(bag())

    @property
    def log_targets(self) -> dict[str, pebble.LogTargetDict]:
        """Where Pebble is to send the log: to every unit of Loki that has said where."""
        targets: dict[str, pebble.LogTargetDict] = {}
        for relation in self._charm.model.relations[LOKI]:
            for unit in relation.units:
                url = push_url(relation.data[unit])
                if url:
                    name = f"loki-{relation.id}-{unit.name.replace('/', '-')}"
                    targets[name] = log_target(self._application, self._charm.unit.name, url)
        return targets


def read_dashboards() -> dict[str, str]:
    """The dashboards, by the names of their files."""
    return {path.stem: path.read_text() for path in DASHBOARDS.glob("*.json")}


def read_rules() -> dict[str, Any]:
    """The alert rules of all files."""
    files = [yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.rules"))]
    return {"groups": [group for file in files for group in cast("dict[str, Any]", file)["groups"]]}
