"""The workloads that tests create."""

import os

from lightkube.models.apps_v1 import StatefulSetSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec, ResourceRequirements
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import StatefulSet


def payload(name: str = "main") -> Container:
    """A container that sleeps. `PAYLOAD_IMAGE` replaces its image."""
    return Container(
        name=name,
        image=os.environ.get("PAYLOAD_IMAGE", "docker.io/istio-aux-cluster/payload:1"),
        command=["sh", "-c", "sleep 3600"],
        resources=ResourceRequirements(requests={"cpu": "1m", "memory": "4Mi"}),
    )


def stateful_set(name: str, namespace: str) -> StatefulSet:
    """A StatefulSet of one pod."""
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": name}),
        spec=PodSpec(containers=[payload()], terminationGracePeriodSeconds=1),
    )
    return StatefulSet(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=StatefulSetSpec(
            selector=LabelSelector(matchLabels={"app": name}), serviceName=name, template=template, replicas=1
        ),
    )
