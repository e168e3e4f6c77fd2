"""A DAG of pods by Airflow's KubernetesPodOperator. Each pod is kept, and needs the mesh at its first instruction."""

import os

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG


def pod(name: str, script: str, **options: object) -> KubernetesPodOperator:
    """Creates a task that runs a script in a pod of its name."""
    return KubernetesPodOperator(
        task_id=name,
        name=name,
        random_name_suffix=False,
        namespace=os.environ["NAMESPACE"],
        image=os.environ["PAYLOAD_IMAGE"],
        cmds=["sh", "-c", f"curl -sSf http://web/ && {script}"],
        on_finish_action="keep_pod",
        **options,
    )


with DAG("pods"):
    value = pod("value", "echo 7 >/airflow/xcom/return.json", do_xcom_push=True)
    reader = pod("reader", "echo read {{ ti.xcom_pull('value') }}")
    deferred = pod("deferred", "true", deferrable=True)
    value >> [reader, deferred]
