"""Certificates, the keystore, and when what is trusted may be served."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store

import certificates
import trust
from application import Application
from certificates import Pair
from keystore import Keystore, due
from trust import SETTLING, Trusted

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NAMES = Application("istio-aux", "kubeflow", "uuid").dns_names
DAY = datetime.timedelta(days=1)
SECOND = datetime.timedelta(seconds=1)


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [certificates.issue(NAMES, NOW + DAY * day) for day in range(3)]


def verified(pair: Pair, name: str, at: datetime.datetime) -> list[x509.Certificate]:
    roots = Store(x509.load_pem_x509_certificates(pair.authority.encode()))
    verifier = PolicyBuilder().store(roots).time(at).build_server_verifier(x509.DNSName(name))
    return verifier.verify(x509.load_pem_x509_certificate(pair.certificate.encode()), [])


@pytest.mark.parametrize("name", NAMES)
def test_certificate_is_valid_for_each_name_of_the_service(pairs: list[Pair], name: str) -> None:
    assert len(verified(pairs[0], name, NOW)) == 2


def test_certificate_is_valid_for_no_other_name(pairs: list[Pair]) -> None:
    with pytest.raises(x509.verification.VerificationError):
        verified(pairs[0], "istio-aux-admission.other.svc", NOW)


def test_certificate_is_valid_from_a_moment_before_for_a_year(pairs: list[Pair]) -> None:
    assert verified(pairs[0], NAMES[0], NOW - datetime.timedelta(minutes=4))
    assert verified(pairs[0], NAMES[0], NOW + 364 * DAY)
    with pytest.raises(x509.verification.VerificationError):
        verified(pairs[0], NAMES[0], NOW + 366 * DAY)


def test_key_is_the_certificates_and_of_p256(pairs: list[Pair]) -> None:
    key = serialization.load_pem_private_key(pairs[0].key.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert key.public_key() == x509.load_pem_x509_certificate(pairs[0].certificate.encode()).public_key()


def test_authority_signs_one_certificate_and_nothing_below(pairs: list[Pair]) -> None:
    authority = x509.load_pem_x509_certificate(pairs[0].authority.encode())
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)


def test_keystore_survives_the_secret(pairs: list[Pair]) -> None:
    first = Keystore(pairs[0])
    second = first.rotated(pairs[1])
    assert "previous-authority" not in first.content
    assert [Keystore.of(kept.content) for kept in (first, second)] == [first, second]


def test_authority_before_is_trusted_until_the_next_rotation(pairs: list[Pair]) -> None:
    twice = Keystore(pairs[0]).rotated(pairs[1]).rotated(pairs[2])
    assert twice.authorities == (pairs[2].authority, pairs[1].authority)


@pytest.mark.parametrize(
    ("days", "names", "expected"),
    [(0, NAMES, False), (243, NAMES, False), (244, NAMES, True), (400, NAMES, True), (0, ("other.svc",), True)],
)
def test_certificate_is_due_after_two_thirds_of_its_validity_or_for_other_names(
    pairs: list[Pair], days: int, names: tuple[str, ...], expected: bool
) -> None:
    assert due(Keystore(pairs[0]), names, NOW + days * DAY) is expected


def test_first_certificate_is_due() -> None:
    assert due(None, NAMES, NOW)


@pytest.mark.parametrize(
    ("trusted", "after", "instead", "expected"),
    [
        ([], SECOND * 0, False, True),  # before `juju trust`: nobody calls the webhook
        ([], SECOND * 60, True, False),
        ([0], SECOND * 0, False, True),
        ([0], SECOND * 0, True, False),
        ([0], SETTLING - SECOND, True, False),
        ([0], SETTLING, True, True),
        ([1], SECOND * 60, False, False),
        ([1], SECOND * 60, True, False),
    ],
)
def test_certificate_is_served_once_its_authority_is_trusted(
    pairs: list[Pair], trusted: list[int], after: datetime.timedelta, instead: bool, expected: bool
) -> None:
    known = Trusted().after([pairs[index].authority for index in trusted], NOW)
    assert known.may_serve(pairs[0], NOW + after, instead=instead) is expected


def test_trust_is_dated_from_when_it_began_and_survives_the_data_bag(pairs: list[Pair]) -> None:
    first, second = (pair.authority for pair in pairs[:2])
    trusted = Trusted().after([first], NOW).after([first, second], NOW + DAY)
    assert trusted.since == {certificates.fingerprint(first): NOW, certificates.fingerprint(second): NOW + DAY}
    bag: dict[str, str] = {}
    trusted.save(bag)
    assert Trusted.load(bag) == trusted
    assert trusted.after([second], NOW).since.keys() == {certificates.fingerprint(second)}


def test_all_that_units_serve_served_and_want_is_trusted_once(pairs: list[Pair]) -> None:
    own, other, third = (pair.authority for pair in pairs)
    unit: dict[str, str] = {}
    trust.want(unit, pairs[1])
    trust.serve(unit, pairs[1])
    trust.serve(unit, pairs[1])
    assert trust.authorities([own], [unit, {}]) == trust.authorities([own], [{}, unit])
    assert set(trust.authorities([own, own], [unit])) == {own.strip(), other.strip()}
    trust.serve(unit, pairs[2])
    assert set(trust.authorities([], [unit])) == {other.strip(), third.strip()}


def test_an_authority_given_as_a_chain_is_trusted_with_all_its_certificates(pairs: list[Pair]) -> None:
    chain = pairs[0].authority + pairs[1].authority
    assert len(trust.authorities([chain], [])) == 2


def test_file_holds_certificate_and_key(pairs: list[Pair]) -> None:
    text = pairs[0].text
    assert text.index("BEGIN CERTIFICATE") < text.index("PRIVATE KEY")
    x509.load_pem_x509_certificate(text.encode())
