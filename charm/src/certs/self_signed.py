"""The application's own certificate, stored in a secret of the application that its leader writes.

`SelfSigned` and `is_due` are pure; `Secret` is the edge to Juju.
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
    """The certificate to serve, and the CA of the previous one."""

    current: ServingCert
    previous_ca: str | None = None
    """Trusted until the next rotation, because some units may still serve the previous certificate."""

    def rotated(self, cert: ServingCert) -> "SelfSigned":
        """Returns the content after this certificate has replaced the current one."""
        return SelfSigned(cert, self.current.ca)

    @property
    def ca_certificates(self) -> tuple[str, ...]:
        """Returns the CAs that clients have to trust."""
        return tuple(filter(None, (self.current.ca, self.previous_ca)))

    @property
    def content(self) -> dict[str, str]:
        """Returns the secret's content. Juju rejects empty values."""
        content = {
            "ca-certificate": self.current.ca,
            "certificate": self.current.certificate,
            "private-key": self.current.key,
            "previous-ca-certificate": self.previous_ca,
        }
        return {key: value for key, value in content.items() if value}

    @classmethod
    def of(cls, content: Mapping[str, str]) -> "SelfSigned":
        """Reads the secret's content."""
        cert = ServingCert(content["ca-certificate"], content["certificate"], content["private-key"])
        return cls(cert, content.get("previous-ca-certificate"))


def is_due(kept: SelfSigned | None, dns_names: tuple[str, ...], now: datetime.datetime) -> bool:
    """Returns true if a new certificate is needed: there is none, it is old, or it is for other names."""
    if kept is None:
        return True
    certificate = kept.current.certificate
    return now >= serving_cert.renew_at(certificate) or not serving_cert.covers(certificate, dns_names)


class Secret:
    """The secret. Every unit of the application may read it; only the leader may write it."""

    def __init__(self, charm: ops.CharmBase) -> None:
        self._app = charm.app
        self._model = charm.model

    def read(self) -> SelfSigned | None:
        """Reads the latest revision; None if the leader has not created the secret yet."""
        try:
            secret = self._model.get_secret(label=LABEL)
        except ops.SecretNotFoundError:
            return None
        return SelfSigned.of(secret.get_content(refresh=True))

    def write(self, certs: SelfSigned) -> None:
        """Writes the secret. Its expiry has Juju notify the leader when the certificate is due."""
        expire = serving_cert.renew_at(certs.current.certificate)
        try:
            secret = self._model.get_secret(label=LABEL)
        except ops.SecretNotFoundError:
            self._app.add_secret(certs.content, label=LABEL, expire=expire)
            return
        secret.set_content(certs.content)
        secret.set_info(expire=expire)
