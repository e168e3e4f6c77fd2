"""Reads from Deployments whether they run: pure."""

import datetime

from lightkube.resources.apps_v1 import Deployment

START_TIMEOUT = datetime.timedelta(minutes=1)
"""Time that a Deployment may take to start before the status reports it."""


def is_available(deployment: Deployment | None) -> bool:
    """Returns true if a replica is ready."""
    return bool(deployment and deployment.status and deployment.status.availableReplicas)


def is_overdue(deployment: Deployment | None, now: datetime.datetime) -> bool:
    """Returns true if no replica has been available for a while, or a new image or option does not start."""
    conditions = (deployment.status.conditions if deployment and deployment.status else None) or []
    failed = {condition.type: condition for condition in conditions if condition.status == "False"}
    if "Progressing" in failed:
        return True
    # The condition Available is False as soon as one replica is missing.
    if "Available" not in failed or is_available(deployment):
        return False
    since = failed["Available"].lastTransitionTime
    return bool(since and now - since >= START_TIMEOUT)
