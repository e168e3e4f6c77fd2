"""The application's own certificate, kept in a secret of the application that its leader writes.

What is kept and when it changes is pure; `Secret` at the end is the edge to Juju.
"""

import dataclasses
import datetime
from collections.abc import Mapping

import ops

from certs import serving_cert
from certs.serving_cert import ServingCert

LABEL = "webhook-certificate"


@dataclasses.dataclass(frozen=True)
class SelfSigned:
    """The certificate to be served, and the CA of the one before it."""

    current: ServingCert
    previous_ca: str | None = None
    """Trusted until the next rotation, so that units which still serve the certificate before are reached."""

    def rotated(self, cert: ServingCert) -> "SelfSigned":
        """The keystore after this pair has taken the place of the current one."""
        return SelfSigned(cert, self.current.ca)

    @property
    def ca_certificates(self) -> tuple[str, ...]:
        """The CAs that clients have to trust."""
        return tuple(filter(None, (self.current.ca, self.previous_ca)))

    @property
    def content(self) -> dict[str, str]:
        """The secret's content. Juju takes no empty values."""
        content = {
            "ca-certificate": self.current.ca,
            "certificate": self.current.certificate,
            "private-key": self.current.key,
            "previous-ca-certificate": self.previous_ca,
        }
        return {key: value for key, value in content.items() if value}

    @classmethod
    def of(cls, content: Mapping[str, str]) -> "SelfSigned":
        """Read the secret's content."""
        cert = ServingCert(content["ca-certificate"], content["certificate"], content["private-key"])
        return cls(cert, content.get("previous-ca-certificate"))


def is_due(kept: SelfSigned | None, dns_names: tuple[str, ...], now: datetime.datetime) -> bool:
    """Whether a new certificate is to be made: there is none, it is old, or for other names."""
    if kept is None:
        return True
    certificate = kept.current.certificate
    return now >= serving_cert.renewal(certificate) or not serving_cert.serves(certificate, dns_names)


class Secret:
    """The secret. Every unit of the application may read it, its leader may write."""

    def __init__(self, charm: ops.CharmBase) -> None:
        self._app = charm.app
        self._model = charm.model

    def read(self) -> SelfSigned | None:
        """What the newest revision holds; None where the leader has not made it yet."""
        try:
            secret = self._model.get_secret(label=LABEL)
        except ops.SecretNotFoundError:
            return None
        return SelfSigned.of(secret.get_content(refresh=True))

    def write(self, keystore: SelfSigned) -> None:
        """Keep this. Juju tells the leader when the certificate is due."""
        expire = serving_cert.renewal(keystore.current.certificate)
        try:
            secret = self._model.get_secret(label=LABEL)
        except ops.SecretNotFoundError:
            self._app.add_secret(keystore.content, label=LABEL, expire=expire)
            return
        secret.set_content(keystore.content)
        secret.set_info(expire=expire)
