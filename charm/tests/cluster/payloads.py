"""The workloads that tests create."""

import os
from collections.abc import Mapping
from typing import Any

from lightkube.models.core_v1 import Container, ResourceRequirements


def payload() -> Container:
    """A container that sleeps. `PAYLOAD_IMAGE` replaces its image."""
    return Container(
        name="main",
        image=os.environ.get("PAYLOAD_IMAGE", "docker.io/istio-aux-cluster/payload:1"),
        command=["sh", "-c", "sleep 3600"],
        resources=ResourceRequirements(requests={"cpu": "1m", "memory": "4Mi"}),
    )


def workload(kind: str, name: str, namespace: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A StatefulSet or Deployment of one pod, which has the label `app`, and these."""
    app = {"app": name}
    pod = {"containers": [payload().to_dict()], "terminationGracePeriodSeconds": 1}
    service = {"serviceName": name} if kind == "StatefulSet" else {}
    template = {"metadata": {"labels": {**app, **(labels or {})}}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 1, "selector": {"matchLabels": app}, "template": template, **service},
    }
