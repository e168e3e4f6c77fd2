"""A Kubernetes API server in memory, at the seam of `cluster.py`: the few calls of `lightkube.Client` that it makes."""

import copy
from typing import Any

import httpx2
from lightkube.core.exceptions import ApiError
from lightkube.core.resource import NamespacedResource
from lightkube.resources.core_v1 import Pod
from lightkube.types import PatchType

Json = dict[str, Any]
Key = tuple[str, str | None, str]


def api_error(code: int, message: str | None = None) -> ApiError:
    """Returns the error that lightkube raises for an answer of the API server."""
    request = httpx2.Request("GET", "https://api.test")
    # As the authorizer says it.
    message = message or ("namespaces is forbidden: User cannot list resource" if code == 403 else "no")
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
    return ApiError(request=request, response=httpx2.Response(code, json=body, request=request))


class Api:
    """Objects by kind, namespace and name, and how the server fails."""

    def __init__(self) -> None:
        self.objects: dict[Key, Json] = {}
        self.broken: Exception | None = None
        """Raised by every call."""
        self.rejected: dict[str, Exception] = {}
        """Raised by every call for a kind."""
        self.vanishing: set[str] = set()
        """Names of objects that are deleted between a list and a patch."""
        self.refused: set[str] = set()
        """Names of objects that a policy lets nobody patch."""
        self.writes: list[tuple[str, str]] = []
        """The writes, as verb and name."""
        self.starts = True
        """Whether pods of Deployments get ready."""
        self.held: set[str] = set()
        """Names of pods that a PodDisruptionBudget holds."""
        self.evictions: dict[str, Exception] = {}
        """Raised by the eviction of a pod, by its name."""

    def client(self, *, namespace: str, field_manager: str) -> "Client":
        """Replaces the class `lightkube.Client`."""
        return Client(self, namespace, field_manager)

    def put(self, kind: str, name: str, namespace: str | None = None, **fields: object) -> None:
        """Creates an object of another owner."""
        metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("metadata", {})}  # type: ignore[dict-item]
        self.objects[kind, namespace, name] = {"metadata": metadata, **fields}

    def get(self, kind: str, name: str, namespace: str | None = None) -> Json:
        return self.objects[kind, namespace, name]

    def names(self, kind: str) -> list[str]:
        return sorted(name for other, _, name in self.objects if other == kind)

    def labels(self, namespace: str) -> Json:
        return self.get("Namespace", namespace)["metadata"].get("labels", {})


class Client:
    def __init__(self, api: Api, namespace: str, field_manager: str) -> None:
        assert field_manager == "istio-aux-charm"
        self._api = api
        self._namespace = namespace

    def get(self, res: type, name: str, *, namespace: str | None = None) -> object:
        return self._typed(res, self._there(res, name, namespace))

    def list(self, res: type, *, labels: dict[str, str], chunk_size: int, namespace: str | None = None) -> list[object]:
        assert chunk_size
        self._answer(res)
        within = self._within(res, namespace)
        found = [
            value
            for (kind, there, _), value in sorted(self._api.objects.items(), key=lambda item: item[0][2])
            if kind == res.__name__ and within in ("*", there)
        ]
        selected = [each for each in found if labels.items() <= each["metadata"].get("labels", {}).items()]
        return [self._typed(res, each) for each in selected]

    def apply(self, obj: Any, *, force: bool) -> object:
        assert force
        self._answer(type(obj))
        value = obj.to_dict()
        key = self._key(type(obj), value["metadata"]["name"], value["metadata"].get("namespace"))
        if key not in self._api.objects or _merged(self._api.objects[key], value) != self._api.objects[key]:
            self._api.writes.append(("apply", f"{key[0]}/{key[2]}"))
        stored = _merged(self._api.objects.get(key, {}), value)
        stored["metadata"].setdefault("uid", f"uid of {key[0]}/{key[2]}")
        if key[0] == "Deployment" and self._api.starts:
            stored["status"] = {"availableReplicas": value["spec"]["replicas"]}
        self._api.objects[key] = stored
        return self._typed(type(obj), stored)

    def patch(self, res: type, name: str, obj: Json, *, patch_type: PatchType) -> None:
        assert patch_type == PatchType.MERGE
        if name in self._api.vanishing:
            raise api_error(404, f"{name} not found")
        if name in self._api.refused:
            raise api_error(422, "labels are owned by the platform")
        there = self._there(res, name, None)
        self._api.objects[self._key(res, name, None)] = _merged(there, obj)
        self._api.writes.append(("patch", f"{res.__name__}/{name}"))

    def create(self, obj: Any, *, name: str, namespace: str) -> None:
        assert type(obj) is Pod.Eviction
        assert obj.metadata
        assert (obj.metadata.name, obj.metadata.namespace) == (name, namespace)
        self._answer(Pod)
        if name in self._api.evictions:
            raise self._api.evictions[name]
        if name in self._api.held:
            raise api_error(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        self.delete(Pod, name, namespace=namespace)

    def delete(self, res: type, name: str, *, namespace: str | None = None) -> None:
        self._there(res, name, namespace)
        del self._api.objects[self._key(res, name, namespace)]
        self._api.writes.append(("delete", f"{res.__name__}/{name}"))

    def _answer(self, res: type) -> None:
        failure = self._api.broken or self._api.rejected.get(res.__name__)
        if failure:
            raise failure

    def _there(self, res: type, name: str, namespace: str | None) -> Json:
        assert name, "without one, an API server lists the kind"
        self._answer(res)
        key = self._key(res, name, namespace)
        if key not in self._api.objects:
            raise api_error(404, f"{name} not found")
        return copy.deepcopy(self._api.objects[key])

    def _key(self, res: type, name: str, namespace: str | None) -> Key:
        return res.__name__, self._within(res, namespace), name

    def _within(self, res: type, namespace: str | None) -> str | None:
        return (namespace or self._namespace) if issubclass(res, NamespacedResource) else None

    @staticmethod
    def _typed(res: Any, value: Json) -> object:
        return res.from_dict(copy.deepcopy(value))


def _merged(into: Json, patch: Json) -> Json:
    """A JSON merge patch (RFC 7386)."""
    result = copy.deepcopy(into)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merged(result.get(key) or {}, value)
        else:
            result[key] = value
    return result
