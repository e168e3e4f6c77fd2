"""Issues and reads the certificates of the webhook's server and of their CAs. Pure but for randomness."""

import dataclasses
import datetime
import re
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(minutes=5)
"""Certificates are valid from this long before they are issued, for clients whose clocks are behind."""

_PEM_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class ServingCert:
    """A server certificate, its key and its CA, in PEM."""

    ca: str
    """The certificate of the CA that clients have to trust."""
    certificate: str
    """The server's certificate, followed by intermediate certificates if there are any."""
    key: str

    @property
    def text(self) -> str:
        """Returns certificate and key in one text, so that both change at the same moment."""
        return f"{self.certificate.strip()}\n{self.key.strip()}\n"


def issue(dns_names: Iterable[str], now: datetime.datetime, validity: datetime.timedelta = VALIDITY) -> ServingCert:
    """Issues a key, a certificate for it, and a CA for this one certificate.

    The CA's key is discarded after signing, so the CA can never sign anything else.
    """
    not_before, not_after = now - CLOCK_SKEW, now + validity
    names = list(dns_names)
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _common_name(f"istio-aux CA of {now:%Y-%m-%dT%H:%M:%SZ}")
    ca = (
        _certificate(issuer, issuer, ca_key.public_key(), not_before, not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    certificate = (
        _certificate(_common_name("istio-aux"), issuer, key.public_key(), not_before, not_after)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return ServingCert(_pem(ca), _pem(certificate), _key_pem(key))


def renew_at(certificate: str) -> datetime.datetime:
    """Returns the time at which two thirds of a certificate's validity are over."""
    parsed = x509.load_pem_x509_certificate(certificate.encode())
    not_before, not_after = parsed.not_valid_before_utc, parsed.not_valid_after_utc
    return not_before + (not_after - not_before) * 2 / 3


def covers(certificate: str, dns_names: Iterable[str]) -> bool:
    """Returns true if a certificate is for all these names."""
    extensions = x509.load_pem_x509_certificate(certificate.encode()).extensions
    listed = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(dns_names) <= set(listed.get_values_for_type(x509.DNSName))


def fingerprint(certificate: str) -> str:
    """Returns the SHA-256 of a certificate, in hexadecimal."""
    return x509.load_pem_x509_certificate(certificate.encode()).fingerprint(hashes.SHA256()).hex()


def split(text: str) -> list[str]:
    """Returns the certificates of a text in PEM."""
    return _PEM_CERTIFICATE.findall(text)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    not_before: datetime.datetime,
    not_after: datetime.datetime,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=not_before,
        not_valid_after=not_after,
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return text.decode()
