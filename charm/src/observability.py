"""Data bags of prometheus_scrape and grafana_dashboard, as their interface documents specify them.

README.md says why the charms' libraries are not used.
"""

import json
import pathlib
import uuid
from collections.abc import Sequence

import ops
from cosl import JujuTopology, LZMABase64
from cosl.rules import Rules

PROMETHEUS, GRAFANA, TRACING, TRACING_CA = "metrics-endpoint", "grafana-dashboard", "charm-tracing", "receive-ca-cert"
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


def publish(charm: ops.CharmBase, addresses: Sequence[str]) -> None:
    """Writes the application's bags. Files are read only where there is a relation."""
    topology = JujuTopology.from_charm(charm)
    for relation in charm.model.relations[PROMETHEUS]:
        relation.data[charm.app].update(scrape_data(topology, addresses))
    for relation in charm.model.relations[GRAFANA]:
        relation.data[charm.app].update(dashboard_data(topology))
