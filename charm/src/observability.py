"""Data bags of prometheus_scrape and grafana_dashboard, as their interface documents specify them.

The contents are pure; `Observability` writes and reads bags. README.md says why the charms' libraries are not used.
"""

import json
import pathlib
import uuid
from collections.abc import Sequence
from typing import Any

import ops
from cosl import JujuTopology, LZMABase64
from cosl.rules import Rules

PROMETHEUS, GRAFANA = "metrics-endpoint", "grafana-dashboard"
HEALTH_PORT = 8080

_HERE = pathlib.Path(__file__).parent
RULES = _HERE / "prometheus_alert_rules"
DASHBOARDS = _HERE / "grafana_dashboards"

Bag = dict[str, str]


def scrape_data(topology: JujuTopology, addresses: Sequence[str]) -> Bag:
    """Returns the application's bag of prometheus_scrape: the pods' addresses, since no unit serves metrics."""
    targets = [f"[{address}]:{HEALTH_PORT}" if ":" in address else f"{address}:{HEALTH_PORT}" for address in addresses]
    job = {"metrics_path": "/metrics", "static_configs": [{"targets": targets}]}
    rules = Rules("promql", topology)
    rules.add_path(RULES)
    return {
        "scrape_jobs": json.dumps([job]),
        "scrape_metadata": json.dumps(topology.as_dict()),
        "alert_rules": json.dumps(rules.as_dict()),
    }


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


class Observability:
    """The relations with Prometheus and Grafana."""

    def __init__(self, charm: ops.CharmBase) -> None:
        self._charm = charm
        self._topology = JujuTopology.from_charm(charm)

    def publish(self, addresses: Sequence[str]) -> None:
        """Writes the application's bags. Files are read only where there is a relation."""
        for relation in self._charm.model.relations[PROMETHEUS]:
            relation.data[self._charm.app].update(scrape_data(self._topology, addresses))
        for relation in self._charm.model.relations[GRAFANA]:
            relation.data[self._charm.app].update(dashboard_data(self._topology))


def read_rules() -> dict[str, Any]:
    """Reads the alert rules of all files, without Juju's labels."""
    rules = Rules("promql")
    rules.add_path(RULES)
    return rules.as_dict()
