"""Reads from Deployments whether they run: pure."""

import datetime

from lightkube.models.apps_v1 import DeploymentCondition
from lightkube.resources.apps_v1 import Deployment

from cluster import metadata

START_TIMEOUT = datetime.timedelta(minutes=1)
"""Time that a Deployment may take to start before the status reports it."""


def is_available(deployment: Deployment | None) -> bool:
    """Returns true if a replica is ready."""
    return bool(deployment and deployment.status and deployment.status.availableReplicas)


def is_overdue(deployment: Deployment | None, now: datetime.datetime) -> bool:
    """Returns true if no replica has been available for a while, or a new image or option does not start."""
    if not deployment or not deployment.status:
        return False
    conditions = {condition.type: condition for condition in deployment.status.conditions or []}
    if _is_false(conditions.get("Progressing")):
        return True
    available = conditions.get("Available")
    if not _is_false(available):
        return False
    since = (available and available.lastTransitionTime) or metadata.of(deployment).creationTimestamp
    return bool(since and now - since >= START_TIMEOUT)


def _is_false(condition: DeploymentCondition | None) -> bool:
    return condition is not None and condition.status == "False"
