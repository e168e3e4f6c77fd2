"""Grafana's dashboard before a Prometheus that scrapes the webhook and the controller: every panel shows something.

PROMETHEUS is the program. The webhook is that of the installation which the cluster has, the controller the charm's.
"""

import contextlib
import json
import math
import os
import pathlib
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from lightkube.resources.core_v1 import Pod

import webhook
from tests.cluster.admission import is_injected, is_ready
from tests.cluster.kubeflow import CONTROLLER, OTHER_INSTALLATION
from tests.cluster.model import Model
from tests.cluster.waiting import until

DASHBOARD = pathlib.Path(__file__).parents[2] / "src/grafana_dashboards/istio-aux.json"
VARIABLES = {"$juju_model": "testing", "$juju_application": "istio-aux", "$__rate_interval": "5s"}
JUJU = {"juju_model": "testing", "juju_application": "istio-aux", "juju_unit": "istio-aux/0"}
OF_THE_CONTROLLER = {"Tenants", "Looks at tenants"}

Ask = Callable[[str], list[float]]


def queries(*, of_the_controller: bool) -> list[tuple[str, str]]:
    """Returns the panels' titles and queries."""
    found: list[tuple[str, str]] = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if (panel["title"] in OF_THE_CONTROLLER) == of_the_controller:
            for target in panel["targets"]:
                query = target["expr"]
                for variable, value in VARIABLES.items():
                    query = query.replace(variable, value)
                found.append((panel["title"], query))
    return found


@contextlib.contextmanager
def prometheus(directory: pathlib.Path, pods: list[Pod]) -> Iterator[Ask]:
    """A Prometheus that scrapes these pods once a second, to be asked for a query's values."""
    program = os.environ.get("PROMETHEUS")
    if not program:
        pytest.fail("PROMETHEUS is not set; next: charm/test cluster, or set it to the program")
    targets = [f"{pod.status.podIP}:{webhook.HEALTH_PORT}" for pod in pods if pod.status]
    job = {"job_name": "istio-aux", "static_configs": [{"targets": targets, "labels": JUJU}]}
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = (
        f"--config.file={directory}/prometheus.yaml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address={address}",
    )
    with (directory / "log").open("w") as log, subprocess.Popen([program, *options], stdout=log, stderr=log) as process:
        try:
            until("Prometheus", lambda: is_answering(f"http://{address}/-/ready"))
            yield lambda query: values(f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        finally:
            process.terminate()


def is_answering(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return answer.status == 200
    return False


def values(url: str) -> list[float]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return [float(each["value"][1]) for each in result]


def ready_pods(model: Model, namespace: str, name: str) -> list[Pod]:
    pods = list(model.admin.list(Pod, namespace=namespace, labels={"app.kubernetes.io/name": name}))
    return pods if all(is_ready(pod) for pod in pods) else []


def test_each_panel_of_the_webhook_has_data(untrusted: Model, tmp_path: pathlib.Path) -> None:
    namespace = untrusted.namespace(istio_injection="enabled", istio_aux_io__injection="enabled")
    pods = until("the webhook's pods", lambda: ready_pods(untrusted, OTHER_INSTALLATION, "istio-aux"))

    def shows(ask: Ask, title: str, query: str) -> bool:
        assert is_injected(untrusted, namespace)
        found = ask(query)
        return bool(found) and not any(map(math.isnan, found)) and (title not in busy or max(found) > 0)

    busy = {"Units that answer", "Certificate: validity that is left", "Admission reviews by result", "Time to answer"}
    with prometheus(tmp_path, pods) as ask:
        panels = queries(of_the_controller=False)
        assert busy <= {title for title, _ in panels}
        for title, query in panels:
            until(f"{title}: {query}", lambda title=title, query=query: shows(ask, title, query))


@pytest.mark.usefixtures("kubeflow", "no_other_controller", "unit_pod")
def test_each_panel_of_the_controller_has_data(model: Model, tmp_path: pathlib.Path) -> None:
    model.namespace(istio_aux_io__tenancy="enabled")
    model.deployed({"tenancy": True})
    pods = until("the controller's pods", lambda: ready_pods(model, model.name, CONTROLLER))
    with prometheus(tmp_path, pods) as ask:
        for title, query in queries(of_the_controller=True):
            until(f"{title}: {query}", lambda query=query: ask(query))
        tenants = next(query for title, query in queries(of_the_controller=True) if title == "Tenants")
        until("the tenant", lambda: ask(tenants) == [1.0])
