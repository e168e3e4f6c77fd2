"""The edge to the Kubernetes API: a few calls of lightkube, with its errors as four types."""

import contextlib
import functools
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any, TypeVar, cast

import httpx2
import lightkube
import msgspec
from lightkube.codecs import AnyResource
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.core.resource import GlobalResource, NamespacedResource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources import admissionregistration_v1 as admission
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod, Secret, Service, ServiceAccount
from lightkube.resources.networking_v1 import NetworkPolicy
from lightkube.resources.policy_v1 import PodDisruptionBudget
from lightkube.resources.rbac_authorization_v1 import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from lightkube.types import PatchType

from application import Application
from cluster import metadata

FIELD_MANAGER = "istio-aux-charm"
ALL_NAMESPACES = "*"
_PAGE = 500

Kind = type[GlobalResource | NamespacedResource]
KINDS: tuple[Kind, ...] = (
    admission.MutatingWebhookConfiguration,
    ClusterRoleBinding,
    RoleBinding,
    admission.ValidatingAdmissionPolicyBinding,
    admission.ValidatingAdmissionPolicy,
    Deployment,
    ClusterRole,
    Role,
    NetworkPolicy,
    Secret,
    ServiceAccount,
    PodDisruptionBudget,
    Service,
)
"""Every kind that the charm creates, in the order of deletion: first what calls the webhook, then rights, what bounds
them, and the tenancy controller."""

Patch = Mapping[str, Any]
"""A merge patch."""

R = TypeVar("R", bound=GlobalResource | NamespacedResource)


class ClusterError(Exception):
    """The base of all failures of a call."""


class Forbidden(ClusterError):
    """The application's account lacks the rights."""


class Unavailable(ClusterError):
    """The API server is unavailable, busy or broken. The charm asks again at the next event."""


class NotFound(ClusterError):
    """The object does not exist, or the server does not know its kind."""


class Rejected(ClusterError):
    """The API server, or a policy of the cluster, rejects the call, and says why."""


class Cluster:
    """The cluster, with the rights of the application's account. Calls without a namespace are for the model's."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    @functools.cached_property
    def _client(self) -> Any:  # noqa: ANN401
        # Any: lightkube's overloads know the kind of a call, and these calls take any.
        return lightkube.Client(namespace=self._namespace, field_manager=FIELD_MANAGER)

    def apply(self, wanted: AnyResource) -> AnyResource:
        """Applies an object and returns it. Fields of other managers are taken over."""
        with _errors():
            return self._client.apply(wanted, force=True)

    def get(self, kind: type[R], name: str, namespace: str | None = None) -> R | None:
        """Reads an object; None if it does not exist."""
        with contextlib.suppress(NotFound), _errors():
            return cast("R", self._client.get(kind, name, namespace=namespace))
        return None

    def list(self, kind: type[R], namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Iterator[R]:
        """Yields objects of a kind, in a namespace or in ALL_NAMESPACES; none if the server does not know the kind.

        Only one page of them is in memory.
        """
        with contextlib.suppress(NotFound), _errors():
            pages = self._client.list(kind, labels=dict(labels or {}), chunk_size=_PAGE, namespace=namespace)
            yield from cast("Iterator[R]", pages)

    def serves(self, kind: Kind) -> bool:
        """Returns true if the server knows the kind."""
        with contextlib.suppress(NotFound), _errors():
            next(iter(self._client.list(kind, labels={}, chunk_size=_PAGE)), None)
            return True
        return False

    def patch(self, kind: Kind, name: str, patch: Patch) -> bool:
        """Patches an object, which another may own. Returns false if it does not exist."""
        with contextlib.suppress(NotFound), _errors():
            self._client.patch(kind, name, dict(patch), patch_type=PatchType.MERGE)
            return True
        return False

    def evict(self, pod: str, namespace: str) -> bool:
        """Evicts a pod. Returns false if a PodDisruptionBudget does not allow it now."""
        eviction = Pod.Eviction(metadata=ObjectMeta(name=pod, namespace=namespace))
        with contextlib.suppress(NotFound), _errors():
            try:
                self._client.create(eviction, name=pod, namespace=namespace)
            except ApiError as error:
                if error.response.status_code == 429:
                    return False
                raise
        return True

    def owned(self, application: Application) -> Iterator[AnyResource]:
        """Lists all objects that the application created, of any kind and revision."""
        for kind in KINDS:
            yield from cast("Iterator[AnyResource]", self.list(kind, labels=application.made_by_charm))

    def delete(self, unwanted: AnyResource) -> None:
        """Deletes an object. Does nothing if it does not exist."""
        with contextlib.suppress(NotFound), _errors():
            self._client.delete(type(unwanted), metadata.name(unwanted), namespace=metadata.namespace(unwanted))


@contextlib.contextmanager
def _errors() -> Generator[None]:
    try:
        yield
    except (ApiError, httpx2.HTTPStatusError) as error:
        raise _of_status(error.response.status_code, str(error)) from error
    except (httpx2.HTTPError, ConfigError, OSError) as error:
        raise Unavailable(str(error) or type(error).__name__) from error
    except (KeyError, msgspec.DecodeError) as error:
        # Something between here and the API server answered: lightkube 1.0 reads a Content-Type that may not be there.
        raise Unavailable(f"no answer of an API server: {error}") from error


def _of_status(code: int, message: str) -> ClusterError:
    if code == 403:
        # The authorizer's message names the verb. Others are policies, quotas, or rights that the charm lacks itself.
        return Forbidden(message) if re.search(r"cannot \w+ resource", message) else Rejected(message)
    if code == 404:
        return NotFound(message)
    # 401: the account's token has just been replaced, or this server does not know it yet. 409: a concurrent write.
    if code in (401, 408, 409, 429) or code >= 500:
        return Unavailable(message)
    return Rejected(message)
