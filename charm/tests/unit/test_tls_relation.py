"""The relation `certificates`: what it issues becomes the webhook's next certificate."""

import base64
import dataclasses
import datetime
import json

import pytest
from charmlibs.interfaces.tls_certificates import (
    Certificate,
    CertificateRequestAttributes,
    CertificateSigningRequest,
    PrivateKey,
)
from ops import ActiveStatus, testing

from tests.unit.api import Api
from tests.unit.juju import App

YEAR = datetime.timedelta(days=365)
SECRET = ("Secret", "istio-aux-webhook-certificate", "kubeflow")
WAITS = ActiveStatus("serving its own certificate until the relation certificates issues one")


class Provider:
    """A provider that issues certificates."""

    def __init__(self, name: str) -> None:
        self.key = PrivateKey.generate()
        attributes = CertificateRequestAttributes(common_name=name, is_ca=True)
        self.ca = Certificate.generate_self_signed_ca(attributes, self.key, validity=YEAR)

    def answer(self, app: App, validity: datetime.timedelta = YEAR) -> str:
        """Signs what the application asks for, and has the leader hear of that. Returns the certificate."""
        relation = app.relation(0, "certificates")
        requests = json.loads(relation.local_app_data["certificate_signing_requests"])
        csr = CertificateSigningRequest.from_string(requests[0]["certificate_signing_request"])
        certificate = csr.sign(self.ca, self.key, validity=validity)
        signed = {
            "certificate": str(certificate),
            "certificate_signing_request": str(csr),
            "ca": str(self.ca),
            "chain": [str(certificate), str(self.ca)],
        }
        answered = dataclasses.replace(relation, remote_app_data={"certificates": json.dumps([signed])})
        app.relate(0, answered, "relation_changed")
        return str(certificate)


@pytest.fixture(scope="module")
def provider() -> Provider:
    return Provider("first")


@pytest.fixture
def related(app: App) -> App:
    app.deploy()
    app.relate(0, testing.Relation("certificates", id=7, remote_app_name="ca-certificate"))
    return app


def data(api: Api) -> dict[str, str]:
    there = api.get(*SECRET).get("data") or {}
    return {key: base64.b64decode(value).decode() for key, value in there.items()}


def test_own_certificate_is_served_until_one_is_issued(related: App, api: Api) -> None:
    assert related.status() == WAITS
    assert data(api) == {}


def test_issued_certificate_becomes_the_next_one(related: App, api: Api, provider: Provider) -> None:
    certificate = provider.answer(related)
    assert related.status() == ActiveStatus()
    assert data(api).keys() == {"next-ca.crt", "next.crt", "next.key"}
    assert data(api)["next.crt"].strip() == certificate.strip()
    assert data(api)["next-ca.crt"].strip() == str(provider.ca).strip()
    issued = Certificate.from_string(data(api)["next.crt"])
    assert issued.common_name == "istio-aux-webhook.kubeflow.svc"
    assert issued.sans_dns == {"istio-aux-webhook.kubeflow.svc"}


@pytest.mark.parametrize(("length", "has_it"), [(64, True), (65, False)])
def test_common_name_is_the_services_if_it_fits(api: Api, provider: Provider, length: int, has_it: bool) -> None:
    """X.509 has 64 characters for it, and the API server reads the other names."""
    name = f"{'a' * (length - len('-webhook.kubeflow.svc'))}-webhook.kubeflow.svc"
    app = App(name.removesuffix("-webhook.kubeflow.svc"))
    app.deploy()
    app.relate(0, testing.Relation("certificates", id=7, remote_app_name="ca-certificate"))
    issued = Certificate.from_string(provider.answer(app))
    assert issued.common_name == (name if has_it else "istio-aux")
    assert issued.sans_dns == {name}


def test_renewal_is_requested_before_the_webhook_would_renew(related: App, provider: Provider) -> None:
    provider.answer(related)
    ends = [secret.expire for secret in related.units[0].secrets if secret.expire]
    left = [end - datetime.datetime.now(datetime.UTC) for end in ends]
    assert [round(each / YEAR, 2) for each in left] == [0.6], "the webhook renews after two thirds"


def test_certificate_is_handed_on_once(related: App, api: Api, provider: Provider) -> None:
    provider.answer(related)
    # The webhook renews by itself, since the provider does not in time.
    api.get(*SECRET)["data"] = {"tls.crt": "b3du"}
    writes = len(api.writes)
    related.update(0)
    assert data(api) == {"tls.crt": "own"}
    assert len(api.writes) == writes
    provider.answer(related)
    assert "next.crt" in data(api), "a new one is handed on"


def test_corrected_ca_is_handed_on(related: App, api: Api, provider: Provider) -> None:
    provider.answer(related)
    relation = related.relation(0, "certificates")
    signed = json.loads(relation.remote_app_data["certificates"])[0]
    signed["ca"] = str(Provider("second").ca)
    signed["chain"] = [signed["certificate"], signed["ca"]]
    corrected = dataclasses.replace(relation, remote_app_data={"certificates": json.dumps([signed])})
    related.relate(0, corrected, "relation_changed")
    assert data(api)["next-ca.crt"].strip() == signed["ca"].strip()


def test_certificates_end_with_a_newline(related: App, api: Api, provider: Provider) -> None:
    """The API server reads none of two that stand in one line."""
    provider.answer(related)
    assert all(text.endswith("-----\n") for text in data(api).values())


def test_expired_certificate_is_not_served(related: App, api: Api, provider: Provider) -> None:
    provider.answer(related, validity=datetime.timedelta(seconds=-1))
    assert data(api) == {}
    assert related.status() == WAITS


def test_renewal_is_the_providers(related: App, provider: Provider) -> None:
    provider.answer(related)
    message = "the certificate is from the relation certificates: renew it at its provider"
    assert related.failure(0, "rotate-certificates") == message
