"""The controller for Kubeflow's tenants: its image, its health, and the objects that it manages. Pure."""

import dataclasses
import datetime

from lightkube import generic_resource
from lightkube.core.resource import NamespacedResource
from lightkube.models.apps_v1 import DeploymentCondition
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod
from lightkube.resources.rbac_authorization_v1 import RoleBinding

import names
from cluster import metadata
from webhook import CONTAINER

START_TIMEOUT = datetime.timedelta(minutes=1)
"""Time that the controller may take to start before the status reports it."""

_POD_DEFAULT: type[NamespacedResource] = generic_resource.create_namespaced_resource(  # pyright: ignore[reportUnknownMemberType]
    "kubeflow.org", "v1alpha1", "PodDefault", "poddefaults"
)
TENANT_KINDS = (RoleBinding, _POD_DEFAULT)
"""The kinds that the controller manages in tenants' namespaces."""
KEPT_FOR_TENANTS = {names.MANAGED_BY: names.TENANCY_MANAGER}
"""The label of these objects."""


@dataclasses.dataclass(frozen=True)
class Image:
    """An image, and the Secrets of the model's namespace with which it is pulled."""

    reference: str
    pull_secrets: tuple[str, ...] = ()


def image_of(pod: Pod | None) -> Image | None:
    """Returns the image of the webhook's container in a unit's pod."""
    spec = pod.spec if pod else None
    for container in spec.containers if spec else ():
        if container.name == CONTAINER and container.image:
            secrets = (spec.imagePullSecrets if spec else None) or []
            return Image(container.image, tuple(secret.name for secret in secrets if secret.name))
    return None


def is_overdue(controller: Deployment | None, now: datetime.datetime) -> bool:
    """Returns true if no replica has been available for a while, or a new image does not start."""
    if not controller or not controller.status:
        return False
    conditions = {condition.type: condition for condition in controller.status.conditions or []}
    if _is_false(conditions.get("Progressing")):
        return True
    available = conditions.get("Available")
    if not _is_false(available):
        return False
    since = (available and available.lastTransitionTime) or metadata.of(controller).creationTimestamp
    return bool(since and now - since >= START_TIMEOUT)


def _is_false(condition: DeploymentCondition | None) -> bool:
    return condition is not None and condition.status == "False"
