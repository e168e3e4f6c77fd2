"""The statuses of a unit, with all their messages. Pure."""

from collections.abc import Iterable, Sequence

from ops import ActiveStatus, BlockedStatus, MaintenanceStatus, StatusBase, WaitingStatus

REMOVED = MaintenanceStatus("removed from the cluster: no unit is planned")
NO_PEERS = WaitingStatus("waiting for the peer relation")
NO_CONTAINER = WaitingStatus("waiting for Pebble in the container webhook")
DOES_NOT_START = WaitingStatus("waiting for the webhook, which does not start; see juju debug-log and its log")
NOT_READY = WaitingStatus("waiting for the webhook, which is not ready; see its log")
NO_CERTIFICATE = WaitingStatus("waiting for the leader to issue a certificate")
NOT_TRUSTED_YET = WaitingStatus("waiting for the leader to have the API server trust the certificate")
RESTART_WAITS = WaitingStatus("waiting for other units to restart the webhook with the new options")
API_UNAVAILABLE = WaitingStatus("waiting for the Kubernetes API, which does not answer; see juju debug-log")
NOT_ISSUED = ActiveStatus("serving its own certificate until the relation certificates issues one")
NO_CA_FOR_LOKI = ActiveStatus("logs are not sent: Loki's address is https; relate receive-ca-cert to its CA")


def invalid_options(problems: str) -> StatusBase:
    """Reports invalid options; the webhook goes on with the previous ones."""
    return BlockedStatus(f"invalid options; keeping the previous ones: {problems}")


def missing_juju_trust(application: str) -> StatusBase:
    """Reports that the application has no rights in the cluster."""
    return BlockedStatus(f"no rights in the cluster; run: juju trust {application} --scope=cluster")


def rejected(message: str) -> StatusBase:
    """Reports an object that the API server rejects."""
    return BlockedStatus(f"the Kubernetes API rejects an object of this charm: {message}")


def conflict(message: str) -> StatusBase:
    """Reports what in the cluster keeps the installation from being complete."""
    return BlockedStatus(message)


def absent_namespaces(listed: Sequence[str]) -> StatusBase:
    """Reports listed namespaces that do not exist. The unit stays active: a profile may have been deleted."""
    return ActiveStatus(f"namespaces not found: {', '.join(listed)}; they are labelled once they exist")


def controller_not_ready(deployment: str) -> StatusBase:
    """Reports that the tenancy controller does not run. Tenants keep what they have."""
    return WaitingStatus(f"waiting for the Deployment {deployment}, which is not ready; see its events and its log")


def exempt_from_sidecars(applications: Iterable[str]) -> StatusBase:
    """Reports which applications need no sidecar, because they run before Istio can inject."""
    return ActiveStatus(f"sidecars required, except for istiod and {', '.join(sorted(applications))}")


def failing(checks: Sequence[str]) -> StatusBase:
    """Reports failing checks of Pebble's."""
    return WaitingStatus(f"waiting for the webhook: its checks fail: {', '.join(checks)}; see its log")
