"""Certificates, the keystore, and when what is trusted may be served."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store

from application import Application
from certs import ca_trust, serving_cert
from certs.ca_trust import SETTLING, TrustedCAs
from certs.self_signed import SelfSigned, is_due
from certs.serving_cert import ServingCert

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NAMES = Application("istio-aux", "kubeflow", "uuid").dns_names
DAY = datetime.timedelta(days=1)
SECOND = datetime.timedelta(seconds=1)


@pytest.fixture(scope="module")
def certs() -> list[ServingCert]:
    return [serving_cert.issue(NAMES, NOW + DAY * day) for day in range(3)]


def verified(cert: ServingCert, name: str, at: datetime.datetime) -> list[x509.Certificate]:
    roots = Store(x509.load_pem_x509_certificates(cert.ca.encode()))
    verifier = PolicyBuilder().store(roots).time(at).build_server_verifier(x509.DNSName(name))
    return verifier.verify(x509.load_pem_x509_certificate(cert.certificate.encode()), [])


@pytest.mark.parametrize("name", NAMES)
def test_certificate_is_valid_for_each_service_name(certs: list[ServingCert], name: str) -> None:
    assert len(verified(certs[0], name, NOW)) == 2


def test_certificate_is_valid_for_no_other_name(certs: list[ServingCert]) -> None:
    with pytest.raises(x509.verification.VerificationError):
        verified(certs[0], "istio-aux-admission.other.svc", NOW)


def test_certificate_is_valid_for_a_year(certs: list[ServingCert]) -> None:
    assert verified(certs[0], NAMES[0], NOW - datetime.timedelta(minutes=4))
    assert verified(certs[0], NAMES[0], NOW + 364 * DAY)
    with pytest.raises(x509.verification.VerificationError):
        verified(certs[0], NAMES[0], NOW + 366 * DAY)


def test_key_is_the_certificates_and_of_p256(certs: list[ServingCert]) -> None:
    key = serialization.load_pem_private_key(certs[0].key.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert key.public_key() == x509.load_pem_x509_certificate(certs[0].certificate.encode()).public_key()


def test_ca_signs_no_intermediate_ca(certs: list[ServingCert]) -> None:
    ca = x509.load_pem_x509_certificate(certs[0].ca.encode())
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)


def test_keystore_survives_the_secret(certs: list[ServingCert]) -> None:
    first = SelfSigned(certs[0])
    second = first.rotated(certs[1])
    assert "previous-ca-certificate" not in first.content
    assert [SelfSigned.of(kept.content) for kept in (first, second)] == [first, second]


def test_previous_ca_is_trusted_until_the_next_rotation(certs: list[ServingCert]) -> None:
    twice = SelfSigned(certs[0]).rotated(certs[1]).rotated(certs[2])
    assert twice.ca_certificates == (certs[2].ca, certs[1].ca)


@pytest.mark.parametrize(
    ("days", "names", "expected"),
    [(0, NAMES, False), (243, NAMES, False), (244, NAMES, True), (400, NAMES, True), (0, ("other.svc",), True)],
)
def test_certificate_is_due_after_two_thirds_or_for_other_names(
    certs: list[ServingCert], days: int, names: tuple[str, ...], expected: bool
) -> None:
    assert is_due(SelfSigned(certs[0]), names, NOW + days * DAY) is expected


def test_first_certificate_is_due() -> None:
    assert is_due(None, NAMES, NOW)


@pytest.mark.parametrize(
    ("trusted", "after", "instead", "expected"),
    [
        ([], SECOND * 0, False, True),  # before `juju trust`: the webhook is not called
        ([], SECOND * 60, True, False),
        ([0], SECOND * 0, False, True),
        ([0], SECOND * 0, True, False),
        ([0], SETTLING - SECOND, True, False),
        ([0], SETTLING, True, True),
        ([1], SECOND * 60, False, False),
        ([1], SECOND * 60, True, False),
    ],
)
def test_certificate_is_served_once_its_ca_is_trusted(
    certs: list[ServingCert], trusted: list[int], after: datetime.timedelta, instead: bool, expected: bool
) -> None:
    known = TrustedCAs().after([certs[index].ca for index in trusted], NOW)
    assert known.may_serve(certs[0], NOW + after, instead=instead) is expected


def test_trust_is_dated_and_survives_the_data_bag(certs: list[ServingCert]) -> None:
    first, second = (cert.ca for cert in certs[:2])
    trusted = TrustedCAs().after([first], NOW).after([first, second], NOW + DAY)
    assert trusted.since == {serving_cert.fingerprint(first): NOW, serving_cert.fingerprint(second): NOW + DAY}
    bag: dict[str, str] = {}
    trusted.save(bag)
    assert TrustedCAs.load(bag) == trusted
    assert trusted.after([second], NOW).since.keys() == {serving_cert.fingerprint(second)}


def test_served_previous_and_desired_cas_are_trusted_once(certs: list[ServingCert]) -> None:
    own, other, third = (cert.ca for cert in certs)
    unit: dict[str, str] = {}
    ca_trust.announce_desired(unit, certs[1])
    ca_trust.announce_served(unit, certs[1])
    ca_trust.announce_served(unit, certs[1])
    assert ca_trust.ca_certificates([own], [unit, {}]) == ca_trust.ca_certificates([own], [{}, unit])
    assert set(ca_trust.ca_certificates([own, own], [unit])) == {own.strip(), other.strip()}
    ca_trust.announce_served(unit, certs[2])
    assert set(ca_trust.ca_certificates([], [unit])) == {other.strip(), third.strip()}


def test_ca_given_as_chain_is_trusted_whole(certs: list[ServingCert]) -> None:
    chain = certs[0].ca + certs[1].ca
    assert len(ca_trust.ca_certificates([chain], [])) == 2


def test_file_holds_certificate_and_key(certs: list[ServingCert]) -> None:
    text = certs[0].text
    assert text.index("BEGIN CERTIFICATE") < text.index("PRIVATE KEY")
    x509.load_pem_x509_certificate(text.encode())
