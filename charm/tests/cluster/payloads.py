"""The workloads that tests create."""

import os

from lightkube.models.apps_v1 import DeploymentSpec, StatefulSetSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec, ResourceRequirements
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import Deployment, StatefulSet


def payload(name: str = "main") -> Container:
    """A container that sleeps. `PAYLOAD_IMAGE` replaces its image."""
    return Container(
        name=name,
        image=os.environ.get("PAYLOAD_IMAGE", "docker.io/istio-aux-cluster/payload:1"),
        command=["sh", "-c", "sleep 3600"],
        resources=ResourceRequirements(requests={"cpu": "1m", "memory": "4Mi"}),
    )


def template(name: str) -> PodTemplateSpec:
    """One pod, by its label."""
    return PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": name}),
        spec=PodSpec(containers=[payload()], terminationGracePeriodSeconds=1),
    )


def stateful_set(name: str, namespace: str) -> StatefulSet:
    """A StatefulSet of one pod."""
    selector = LabelSelector(matchLabels={"app": name})
    return StatefulSet(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=StatefulSetSpec(selector=selector, serviceName=name, template=template(name), replicas=1),
    )


def deployment(name: str, namespace: str) -> Deployment:
    """A Deployment of one pod."""
    selector = LabelSelector(matchLabels={"app": name})
    return Deployment(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=DeploymentSpec(selector=selector, template=template(name), replicas=1),
    )
