"""A job of Dagster with an op that is a Job of Kubernetes, which needs the mesh at its first instruction."""

import os

from dagster import OpExecutionContext, job, op
from dagster_k8s import execute_k8s_job


@op
def greet(context: OpExecutionContext) -> None:
    """Runs the Job, and waits until Kubernetes says that it has succeeded."""
    execute_k8s_job(
        context,
        image=os.environ["PAYLOAD_IMAGE"],
        command=["sh", "-c", os.environ["SCRIPT"]],
        namespace=os.environ["NAMESPACE"],
        load_incluster_config=False,
        kubeconfig_file=os.environ["KUBECONFIG"],
        image_pull_policy="IfNotPresent",
        timeout=int(os.environ["TIMEOUT"]),
    )


@job
def greetings() -> None:
    """Runs the op."""
    greet()
