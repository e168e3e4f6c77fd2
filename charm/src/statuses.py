"""What a unit says of itself: every message in one place. Pure."""

from collections.abc import Iterable, Sequence

from ops import ActiveStatus, BlockedStatus, MaintenanceStatus, StatusBase, WaitingStatus

REMOVED = MaintenanceStatus("removed from the cluster: no unit is planned")
NO_PEERS = WaitingStatus("waiting for the peer relation")
NO_CONTAINER = WaitingStatus("waiting for Pebble in the container webhook")
DOES_NOT_START = WaitingStatus("waiting for the webhook, which does not start; see juju debug-log and its log")
NOT_READY = WaitingStatus("waiting for the webhook, which is not ready; see its log")
NO_CERTIFICATE = WaitingStatus("waiting for the leader to make a certificate")
NOT_TRUSTED_YET = WaitingStatus("waiting for the leader to have the API server trust the certificate")
RESTART_WAITS = WaitingStatus("waiting for other units to restart the webhook with the new options")
API_UNAVAILABLE = WaitingStatus("waiting for the Kubernetes API, which does not answer; see juju debug-log")
NOT_ISSUED = ActiveStatus("serving its own certificate until the relation certificates issues one")
NO_CA_FOR_LOKI = ActiveStatus("logs are not sent: Loki's address is https; relate receive-ca-cert to its CA")


def wrong_options(problems: str) -> StatusBase:
    """Options have values that they cannot have; what ran before runs on."""
    return BlockedStatus(f"wrong options, the ones before are kept: {problems}")


def missing_juju_trust(application: str) -> StatusBase:
    """The application has no rights in the cluster."""
    return BlockedStatus(f"no rights in the cluster; run: juju trust {application} --scope=cluster")


def rejected(message: str) -> StatusBase:
    """The API server does not take what it was sent."""
    return BlockedStatus(f"the Kubernetes API refuses an object of this charm: {message}")


def conflict(message: str) -> StatusBase:
    """Something in the cluster keeps the installation from being complete."""
    return BlockedStatus(message)


def absent_namespaces(listed: Sequence[str]) -> StatusBase:
    """The option names namespaces that do not exist. A deleted profile is no fault, so nothing is blocked."""
    return ActiveStatus(f"namespaces: there is no {', '.join(listed)}; it is labelled once it is created")


def controller_not_ready(deployment: str) -> StatusBase:
    """The tenancy controller does not run. Tenants keep what they have."""
    return WaitingStatus(f"waiting for the Deployment {deployment}, which is not ready; see its events and its log")


def exempt_from_sidecars(applications: Iterable[str]) -> StatusBase:
    """Sidecars are required, but not of what has to run before Istio can inject."""
    return ActiveStatus(f"sidecars required, except of istiod and {', '.join(sorted(applications))}")


def failing(checks: Sequence[str]) -> StatusBase:
    """Pebble's checks fail."""
    return WaitingStatus(f"waiting for the webhook: its checks fail: {', '.join(checks)}; see its log")
