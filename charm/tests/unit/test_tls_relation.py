"""The relation `certificates` is added, its CA changes, and it is removed; each unit stays trusted at all times."""

import dataclasses
import datetime
import json

import pytest
from charmlibs.interfaces.tls_certificates import (
    Certificate,
    CertificateRequestAttributes,
    CertificateSigningRequest,
    PrivateKey,
    TLSCertificatesRequiresV4,
)
from cryptography import x509
from ops import ActiveStatus, testing

from tests.unit.api import Api
from tests.unit.juju import App, Clock
from tests.unit.seen import trusted

YEAR = datetime.timedelta(days=365)
WAITS = ActiveStatus("serving its own certificate until the relation certificates issues one")


class Provider:
    """A provider that issues certificates."""

    def __init__(self, name: str) -> None:
        self.key = PrivateKey.generate()
        attributes = CertificateRequestAttributes(common_name=name, is_ca=True)
        self.ca = Certificate.generate_self_signed_ca(attributes, self.key, validity=YEAR)

    def answer(self, app: App, unit: int) -> None:
        """Sign what a unit asks for, and have it hear of that."""
        relation = app.relation(unit, "certificates")
        requests = json.loads(relation.local_unit_data["certificate_signing_requests"])  # type: ignore[attr-defined]
        signed: list[dict[str, object]] = []
        for request in requests:
            csr = CertificateSigningRequest.from_string(request["certificate_signing_request"])
            certificate = csr.sign(self.ca, self.key, validity=YEAR)
            signed.append(
                {
                    "certificate": str(certificate),
                    "certificate_signing_request": str(csr),
                    "ca": str(self.ca),
                    "chain": [str(certificate), str(self.ca)],
                }
            )
        answered = dataclasses.replace(relation, remote_app_data={"certificates": json.dumps(signed)})  # type: ignore[call-arg]
        app.relate(unit, answered)  # type: ignore[arg-type]
        changed(app, unit)

    def pem(self) -> str:
        return str(self.ca).strip()


@pytest.fixture(scope="module")
def provider() -> Provider:
    return Provider("first")


@pytest.fixture(scope="module")
def another() -> Provider:
    return Provider("second")


def changed(app: App, unit: int) -> None:
    on = app.contexts[unit].on
    app.run(unit, lambda state: on.relation_changed(state.get_relations("certificates")[0]))


def relate(app: App, unit: int) -> None:
    app.relate(unit, testing.Relation("certificates", id=7, remote_app_name="ca-certificate"))
    on = app.contexts[unit].on
    app.run(unit, lambda state: on.relation_created(state.get_relations("certificates")[0]))


def unrelate(app: App, unit: int) -> None:
    on = app.contexts[unit].on
    app.run(unit, lambda state: on.relation_broken(state.get_relations("certificates")[0]))
    app.drop_relation(unit, "certificates")


def served_by(app: App, unit: int) -> x509.Certificate:
    served = app.served(unit)
    assert served
    return x509.load_pem_x509_certificate(served.encode())


def is_of(app: App, unit: int, provider: Provider) -> bool:
    issuer = x509.load_pem_x509_certificate(str(provider.ca).encode())
    return served_by(app, unit).issuer == issuer.subject


def test_own_certificate_is_served_until_one_is_issued(app: App) -> None:
    app.deploy()
    relate(app, 0)
    assert app.status() == WAITS
    assert app.served(0) == app.kept().current.text


def test_issued_certificate_is_served_once_trusted(app: App, api: Api, clock: Clock, provider: Provider) -> None:
    app.deploy()
    relate(app, 0)
    provider.answer(app, 0)
    assert trusted(api) == {provider.pem(), app.kept().current.ca.strip()}
    assert app.served(0) == app.kept().current.text
    clock.passes(seconds=10)
    app.update(0)
    assert is_of(app, 0, provider)
    assert app.status() == ActiveStatus()
    names = served_by(app, 0).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "istio-aux-admission.kubeflow.svc" in names.get_values_for_type(x509.DNSName)


def test_leader_trusts_each_units_certificate(
    app: App, api: Api, clock: Clock, provider: Provider, another: Provider
) -> None:
    app.deploy(2)
    for unit, ca in ((0, provider), (1, another)):
        relate(app, unit)
        ca.answer(app, unit)
    app.peers_changed(0)
    assert trusted(api) == {provider.pem(), another.pem(), app.kept().current.ca.strip()}
    clock.passes(seconds=10)
    app.peers_changed(1)
    app.update(0)
    assert is_of(app, 0, provider)
    assert is_of(app, 1, another)
    assert app.served(0) != app.served(1)


def test_providers_new_ca_is_trusted_before_it_is_served(
    app: App, api: Api, clock: Clock, provider: Provider, another: Provider
) -> None:
    app.deploy()
    relate(app, 0)
    provider.answer(app, 0)
    clock.passes(seconds=10)
    app.update(0)
    another.answer(app, 0)
    assert is_of(app, 0, provider)
    assert {provider.pem(), another.pem()} < trusted(api)
    clock.passes(seconds=10)
    app.update(0)
    assert is_of(app, 0, another)
    app.update(0)
    assert {provider.pem(), another.pem()} < trusted(api), "the one before stays for those who connect meanwhile"


def test_own_certificate_is_served_after_the_relation(app: App, api: Api, clock: Clock, provider: Provider) -> None:
    app.deploy(2)
    for unit in (0, 1):
        relate(app, unit)
        provider.answer(app, unit)
    clock.passes(seconds=10)
    app.update(0)
    app.update(1)
    assert is_of(app, 1, provider)
    for unit in (1, 0):
        unrelate(app, unit)
        assert app.served(unit) == app.kept().current.text
        assert app.status(unit) == ActiveStatus()
    assert app.kept().current.ca.strip() in trusted(api)


def test_events_out_of_order_end_the_same(app: App, clock: Clock, provider: Provider) -> None:
    app.add(0)
    relate(app, 0)
    provider.answer(app, 0)
    app.start(0)
    clock.passes(seconds=10)
    app.update(0)
    assert is_of(app, 0, provider)
    unrelate(app, 0)
    changed_again = app.update(0)
    assert changed_again.unit_status == ActiveStatus()
    assert app.served(0) == app.kept().current.text


def test_rotation_is_left_to_the_provider(app: App, provider: Provider) -> None:
    app.deploy()
    relate(app, 0)
    assert (
        app.failure(0, "rotate-certificates")
        == "the certificate is from the relation certificates: renew it at its provider"
    )


def test_long_names_get_a_common_name_that_fits(monkeypatch: pytest.MonkeyPatch, api: Api, clock: Clock) -> None:
    asked: list[CertificateRequestAttributes] = []

    def remember(
        self: object, charm: object, name: str, requests: list[CertificateRequestAttributes], **_: object
    ) -> None:
        asked.extend(requests)

    monkeypatch.setattr(TLSCertificatesRequiresV4, "__init__", remember)
    monkeypatch.setattr(TLSCertificatesRequiresV4, "get_assigned_certificates", lambda _: ([], None))
    app = App("istio-aux-with-a-name-that-is-very-long-indeed")
    app.deploy()
    assert {request.common_name for request in asked} == {"istio-aux"}
