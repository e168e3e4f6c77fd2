"""The workloads that tests create."""

import os
from collections.abc import Mapping
from typing import Any

from lightkube.models.core_v1 import Container, ResourceRequirements

Labels = Mapping[str, str]


def payload(name: str = "main") -> Container:
    """A container that sleeps. `PAYLOAD_IMAGE` replaces its image."""
    return Container(
        name=name,
        image=os.environ.get("PAYLOAD_IMAGE", "docker.io/istio-aux-cluster/payload:1"),
        command=["sh", "-c", "sleep 3600"],
        resources=ResourceRequirements(requests={"cpu": "1m", "memory": "4Mi"}),
    )


def workload(kind: str, name: str, namespace: str, labels: Labels | None = None) -> dict[str, Any]:
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


def job(name: str, namespace: str, annotations: Labels) -> dict[str, Any]:
    """A Job whose pod has the label `app` and these annotations. Its payload ends at once."""
    container = {**payload().to_dict(), "command": ["true"]}
    pod = {"containers": [container], "restartPolicy": "Never"}
    template = {"metadata": {"labels": {"app": name}, "annotations": dict(annotations)}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": template},
    }
