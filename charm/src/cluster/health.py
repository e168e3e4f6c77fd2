"""Reads from Deployments whether they run: pure."""

import datetime

from lightkube.resources.apps_v1 import Deployment

from cluster import metadata

START_TIMEOUT = datetime.timedelta(minutes=1)
"""Time that a Deployment may take to start before the status reports it."""


def is_available(deployment: Deployment | None) -> bool:
    """Returns true if a replica is ready."""
    return bool(deployment and deployment.status and deployment.status.availableReplicas)


def is_overdue(deployment: Deployment | None, now: datetime.datetime) -> bool:
    """Returns true if no replica has been available for a while, or a new image or option does not start."""
    if not deployment or not deployment.status or not _is_observed(deployment):
        return False
    conditions = {condition.type: condition for condition in deployment.status.conditions or []}
    failed = {kind for kind, condition in conditions.items() if condition.status == "False"}
    if "Progressing" in failed:
        return True
    # The condition Available is False as soon as one replica is missing.
    if "Available" not in failed or is_available(deployment):
        return False
    progressing = conditions.get("Progressing")
    times = (conditions["Available"].lastTransitionTime, progressing.lastUpdateTime if progressing else None)
    since = max(filter(None, times), default=now)
    return now - since >= START_TIMEOUT


def is_current(deployment: Deployment | None) -> bool:
    """Returns true if a replica is ready, and none is of an earlier template."""
    status = deployment.status if deployment and _is_observed(deployment) else None
    return bool(status and status.availableReplicas and status.updatedReplicas == status.replicas)


def _is_observed(deployment: Deployment) -> bool:
    """Returns true if the status is of the current template."""
    observed = deployment.status.observedGeneration if deployment.status else None
    return (observed or 0) >= (metadata.of(deployment).generation or 0)
