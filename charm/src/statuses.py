"""The statuses of a unit, with all their messages. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from ops import ActiveStatus, BlockedStatus, MaintenanceStatus, StatusBase, WaitingStatus

REMOVED = MaintenanceStatus("removed from the cluster: no unit is planned")
NO_PEERS = WaitingStatus("waiting for the peer relation")
API_UNAVAILABLE = WaitingStatus("waiting for the Kubernetes API, which does not answer; see juju debug-log")
NO_WEBHOOK_IMAGE = BlockedStatus("attach the resource webhook-image; see juju attach-resource --help")
NOT_ISSUED = ActiveStatus("serving its own certificate until the relation certificates issues one")


def invalid_options(problems: str) -> StatusBase:
    """Reports invalid options; the webhook goes on with the previous ones."""
    return BlockedStatus(f"invalid options; keeping the previous ones: {problems}")


def no_shim_image(application: str) -> StatusBase:
    """Reports that nothing is opted in, because pods would pull an image that does not exist."""
    return BlockedStatus(f"set the shim's image: juju config {application} shim-image=REGISTRY/shim:TAG")


def missing_juju_trust(application: str) -> StatusBase:
    """Reports that the application has no rights in the cluster."""
    return BlockedStatus(f"no rights in the cluster; run: juju trust {application} --scope=cluster")


def rejected(message: str) -> StatusBase:
    """Reports an object that the API server rejects."""
    return BlockedStatus(f"the Kubernetes API rejects an object of this charm: {message}")


def not_labelled(messages: Iterable[str]) -> StatusBase:
    """Reports namespaces whose labels are rejected."""
    return BlockedStatus(f"namespaces not labelled: {'; '.join(messages)}")


def absent_namespaces(listed: Sequence[str]) -> StatusBase:
    """Reports listed namespaces that do not exist. The unit stays active: a profile may have been deleted."""
    return ActiveStatus(f"namespaces not found: {', '.join(listed)}; they are labelled once they exist")


def not_ready(deployment: str) -> StatusBase:
    """Reports a Deployment that does not run."""
    return WaitingStatus(f"waiting for the Deployment {deployment}, which is not ready; see its events and its log")


def exempt_from_sidecars(applications: Iterable[str]) -> StatusBase:
    """Reports which applications need no sidecar, because they run before Istio can inject."""
    return ActiveStatus(f"sidecars required, except for istiod and {', '.join(sorted(applications))}")


def missed(counts: Mapping[str, int]) -> StatusBase:
    """Reports how many running pods miss what they should have."""
    total = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return ActiveStatus(f"pods that miss something: {total}; see the action list-uninjected-pods")
