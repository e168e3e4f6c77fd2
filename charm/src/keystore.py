"""The application's own certificate, kept in a secret of the application that its leader writes.

What is kept and when it changes is pure; `Secret` at the end is the edge to Juju.
"""

import dataclasses
import datetime
from collections.abc import Mapping

import ops

import certificates
from certificates import Pair

LABEL = "webhook-certificate"


@dataclasses.dataclass(frozen=True)
class Keystore:
    """The certificate to be served, and the authority of the one before it."""

    current: Pair
    previous_authority: str | None = None
    """Trusted until the next rotation, so that units which still serve the certificate before are reached."""

    def rotated(self, pair: Pair) -> "Keystore":
        """The keystore after this pair has taken the place of the current one."""
        return Keystore(pair, self.current.authority)

    @property
    def authorities(self) -> tuple[str, ...]:
        """The authorities that clients have to trust."""
        return tuple(filter(None, (self.current.authority, self.previous_authority)))

    @property
    def content(self) -> dict[str, str]:
        """The secret's content. Juju takes no empty values."""
        content = {
            "authority": self.current.authority,
            "certificate": self.current.certificate,
            "private-key": self.current.key,
            "previous-authority": self.previous_authority,
        }
        return {key: value for key, value in content.items() if value}

    @classmethod
    def of(cls, content: Mapping[str, str]) -> "Keystore":
        """Read the secret's content."""
        pair = Pair(content["authority"], content["certificate"], content["private-key"])
        return cls(pair, content.get("previous-authority"))


def due(kept: Keystore | None, dns_names: tuple[str, ...], now: datetime.datetime) -> bool:
    """Whether a new certificate is to be made: there is none, it is old, or for other names."""
    if kept is None:
        return True
    certificate = kept.current.certificate
    return now >= certificates.renewal(certificate) or not certificates.serves(certificate, dns_names)


class Secret:
    """The secret. Every unit of the application may read it, its leader may write."""

    def __init__(self, charm: ops.CharmBase) -> None:
        self._app = charm.app
        self._model = charm.model

    def read(self) -> Keystore | None:
        """What the newest revision holds; None where the leader has not made it yet."""
        try:
            secret = self._model.get_secret(label=LABEL)
        except ops.SecretNotFoundError:
            return None
        return Keystore.of(secret.get_content(refresh=True))

    def write(self, keystore: Keystore) -> None:
        """Keep this. Juju tells the leader when the certificate is due."""
        expire = certificates.renewal(keystore.current.certificate)
        try:
            secret = self._model.get_secret(label=LABEL)
        except ops.SecretNotFoundError:
            self._app.add_secret(keystore.content, label=LABEL, expire=expire)
            return
        secret.set_content(keystore.content)
        secret.set_info(expire=expire)
