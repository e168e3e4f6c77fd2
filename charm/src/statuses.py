"""What a unit says of itself: every message in one place, and which of several is shown. Pure."""

from collections.abc import Iterable, Sequence

import ops
from ops import ActiveStatus, BlockedStatus, MaintenanceStatus, StatusBase, WaitingStatus

from settings import WrongOptions

REMOVED = MaintenanceStatus("taken out of the cluster: no unit is planned")
NO_PEERS = WaitingStatus("waiting for the peer relation")
NO_CONTAINER = WaitingStatus("waiting for Pebble in the container webhook")
DOES_NOT_START = WaitingStatus("waiting for the webhook, which does not start; see juju debug-log and its log")
NO_CERTIFICATE = WaitingStatus("waiting for the leader to make a certificate")
NOT_TRUSTED_YET = WaitingStatus("waiting for the leader to have the API server trust the certificate")
API_AWAY = WaitingStatus("waiting for the Kubernetes API, which does not answer; see juju debug-log")
NOT_ISSUED = ActiveStatus("serving its own certificate until the relation certificates issues one")


def wrong_options(wrong: WrongOptions) -> StatusBase:
    """Options have values that they cannot have; what ran before runs on."""
    return BlockedStatus(f"wrong options, the ones before are kept: {wrong}")


def not_trusted(application: str) -> StatusBase:
    """The application has no rights in the cluster."""
    return BlockedStatus(f"no rights in the cluster; run: juju trust {application} --scope=cluster")


def refused(message: str) -> StatusBase:
    """The API server does not take what it was sent."""
    return BlockedStatus(f"the Kubernetes API refuses an object of this charm: {message}")


def conflict(message: str) -> StatusBase:
    """Something in the cluster keeps the installation from being complete."""
    return BlockedStatus(message)


def absent_namespaces(listed: Sequence[str]) -> StatusBase:
    """The option names namespaces that do not exist."""
    return BlockedStatus(f"namespaces: there is no {', '.join(listed)}; create it, or take it out of the option")


def failing(checks: Sequence[str]) -> StatusBase:
    """Pebble's checks fail."""
    return WaitingStatus(f"waiting for the webhook: its checks fail: {', '.join(checks)}; see its log")


def worst(found: Iterable[StatusBase]) -> StatusBase:
    """The status to show: of the gravest kind, with all messages of that kind."""
    statuses = list(found)
    for kind in (BlockedStatus, WaitingStatus, MaintenanceStatus, ActiveStatus):
        messages = [status.message for status in statuses if isinstance(status, kind)]
        if messages:
            return kind("; ".join(filter(None, messages)))
    return ops.ActiveStatus()
