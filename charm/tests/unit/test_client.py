"""Errors of the API, as the charm's four types."""

from typing import Any

import httpx2
import msgspec
import pytest
from lightkube.core.exceptions import ConfigError
from lightkube.resources.core_v1 import Namespace, Service

from application import Application
from cluster.client import Cluster, ClusterError, Forbidden, NotFound, Rejected, Unavailable
from tests.unit.api import Api, api_error

SERVICE: Any = Service.from_dict({"metadata": {"name": "gone", "namespace": "kubeflow"}})


def answer_of_a_proxy(code: int) -> httpx2.HTTPStatusError:
    request = httpx2.Request("GET", "https://api.test")
    return httpx2.HTTPStatusError("bad gateway", request=request, response=httpx2.Response(code, request=request))


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (api_error(403), Forbidden),
        (api_error(403, 'pods "x" is forbidden: exceeded quota'), Rejected),
        (api_error(404), NotFound),
        (api_error(400), Rejected),
        (api_error(422), Rejected),
        (api_error(401), Unavailable),
        (api_error(408), Unavailable),
        (api_error(409), Unavailable),
        (api_error(429), Unavailable),
        (api_error(500), Unavailable),
        (api_error(504), Unavailable),
        (answer_of_a_proxy(502), Unavailable),
        (answer_of_a_proxy(403), Rejected),
        (httpx2.ConnectError("refused"), Unavailable),
        (httpx2.ConnectTimeout("slow"), Unavailable),
        (httpx2.RemoteProtocolError("gone"), Unavailable),
        (ConfigError("no configuration"), Unavailable),
        (FileNotFoundError("token"), Unavailable),
        (KeyError("content-type"), Unavailable),
        (msgspec.DecodeError("not JSON"), Unavailable),
    ],
)
def test_failure_is_one_of_four(api: Api, failure: Exception, expected: type[ClusterError]) -> None:
    api.broken = failure
    with pytest.raises(ClusterError) as raised:
        Cluster("kubeflow").apply(SERVICE)
    assert type(raised.value) is expected
    assert str(raised.value) not in ("", "None")


def test_client_that_cannot_be_made_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ConfigError("not in a cluster")

    monkeypatch.setattr("lightkube.Client", fail)
    with pytest.raises(Unavailable, match="not in a cluster"):
        list(Cluster("kubeflow").list(Namespace))


def test_error_without_words_has_its_name(api: Api) -> None:
    api.broken = httpx2.ReadTimeout("")
    with pytest.raises(Unavailable, match="ReadTimeout"):
        list(Cluster("kubeflow").list(Namespace))


def test_absent_objects_are_none_and_deleted_already(api: Api) -> None:
    cluster = Cluster("kubeflow")
    assert cluster.get(Namespace, "gone") is None
    cluster.delete(SERVICE)
    cluster.patch(Namespace, "gone", {"metadata": {"labels": {"a": "b"}}})
    api.broken = api_error(404)
    assert list(cluster.list(Namespace)) == []
    assert list(cluster.owned(Application("a", "m", "u"))) == []
