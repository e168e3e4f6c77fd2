"""Data bags of prometheus_scrape, grafana_dashboard and loki_push_api, as their interface documents specify them.

The contents are pure; `Observability` writes and reads bags. README.md says why the charms' libraries are not used.
"""

import json
import pathlib
import socket
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import ops
from cosl import JujuTopology, LZMABase64
from cosl.rules import Rules
from ops import pebble

from webhook import HEALTH_PORT

PROMETHEUS, GRAFANA, LOKI = "metrics-endpoint", "grafana-dashboard", "logging"

_HERE = pathlib.Path(__file__).parent
RULES = _HERE / "prometheus_alert_rules"
DASHBOARDS = _HERE / "grafana_dashboards"

Bag = dict[str, str]


def scrape_data(topology: JujuTopology) -> Bag:
    """Returns the application's bag of prometheus_scrape. Prometheus replaces the star by each unit's address."""
    job = {"metrics_path": "/metrics", "static_configs": [{"targets": [f"*:{HEALTH_PORT}"]}]}
    rules = Rules("promql", topology)
    rules.add_path(RULES)
    return {
        "scrape_jobs": json.dumps([job]),
        "scrape_metadata": json.dumps(topology.as_dict()),
        "alert_rules": json.dumps(rules.as_dict()),
    }


def scrape_unit_data(unit: str, address: str) -> Bag:
    """Returns a unit's bag of prometheus_scrape."""
    return {"prometheus_scrape_unit_name": unit, "prometheus_scrape_unit_address": address}


def dashboard_data(topology: JujuTopology) -> Bag:
    """Returns the application's bag of grafana_dashboard: compressed dashboards, and an id of their contents."""
    templates = {
        f"file:{path.stem}": {
            "charm": topology.charm_name,
            "content": LZMABase64.compress(path.read_text()),
            "inject_dropdowns": True,
            "juju_topology": topology.as_dict(excluded_keys=["charm_name"]),
        }
        for path in sorted(DASHBOARDS.glob("*.json"))
    }
    version = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(templates, sort_keys=True))
    return {"dashboards": json.dumps({"templates": templates, "uuid": str(version)})}


def loki_data(topology: JujuTopology) -> Bag:
    """Returns the application's bag of loki_push_api. This charm has no alert rules for Loki."""
    return {"metadata": json.dumps(topology.as_dict()), "alert_rules": json.dumps({})}


def push_url(bag: Mapping[str, str]) -> str | None:
    """Returns the URL at which a unit of Loki takes logs; None if its bag has none."""
    try:
        return str(json.loads(bag["endpoint"])["url"])
    except (KeyError, TypeError, ValueError):
        return None


def log_target(topology: JujuTopology, url: str) -> pebble.LogTargetDict:
    """Returns Pebble's log target for a unit."""
    labels = {"product": "Juju", **topology.label_matcher_dict, "juju_unit": str(topology.unit)}
    return {"override": "replace", "type": "loki", "location": url, "services": ["all"], "labels": labels}


class Observability:
    """The relations with Prometheus, Grafana and Loki."""

    def __init__(self, charm: ops.CharmBase) -> None:
        self._charm = charm
        self._topology = JujuTopology.from_charm(charm)

    def publish(self) -> None:
        """Writes the bags."""
        scrape_unit = scrape_unit_data(self._charm.unit.name, socket.getfqdn())
        for relation in self._charm.model.relations[PROMETHEUS]:
            relation.data[self._charm.unit].update(scrape_unit)
        if not self._charm.unit.is_leader():
            return
        # Files are read, and dashboards compressed, only where there is a relation.
        bags: dict[str, Callable[[JujuTopology], Bag]] = {
            PROMETHEUS: scrape_data,
            GRAFANA: dashboard_data,
            LOKI: loki_data,
        }
        for name, bag in bags.items():
            for relation in self._charm.model.relations[name]:
                relation.data[self._charm.app].update(bag(self._topology))

    @property
    def log_targets(self) -> dict[str, pebble.LogTargetDict]:
        """Returns Pebble's log targets: every unit of Loki that has published its URL."""
        targets: dict[str, pebble.LogTargetDict] = {}
        for relation in self._charm.model.relations[LOKI]:
            for unit in relation.units:
                url = push_url(relation.data[unit])
                if url:
                    name = f"loki-{relation.id}-{unit.name.replace('/', '-')}"
                    targets[name] = log_target(self._topology, url)
        return targets


def is_tls(target: pebble.LogTargetDict) -> bool:
    """Returns true if the log is sent over TLS, for which Pebble needs a CA."""
    return str(target.get("location", "")).startswith("https:")


def read_rules() -> dict[str, Any]:
    """Reads the alert rules of all files, without Juju's labels."""
    rules = Rules("promql")
    rules.add_path(RULES)
    return rules.as_dict()
