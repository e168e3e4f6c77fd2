"""Reads the certificate that the relation `certificates` issues. Without it, the webhook has its own."""

import dataclasses
import datetime
import hashlib

import ops
from charmlibs.interfaces.tls_certificates import (
    CertificateRequestAttributes,
    Mode,
    ProviderCertificate,
    TLSCertificatesRequiresV4,
)

from application import Application

RELATION = "certificates"
_LONGEST_COMMON_NAME = 64


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A server certificate, its key and its CA, in PEM."""

    ca: str
    chain: str
    """The certificate, followed by the intermediate ones between it and the CA."""
    key: str

    @property
    def next(self) -> dict[str, str]:
        """Returns the keys of the webhook's Secret that make it the next certificate."""
        texts = {"next-ca.crt": self.ca, "next.crt": self.chain, "next.key": self.key}
        return {key: f"{text.strip()}\n" for key, text in texts.items()}

    @property
    def fingerprint(self) -> str:
        """Returns a digest of the certificate, by which it is known whether it was handed on."""
        return hashlib.sha256(self.chain.strip().encode()).hexdigest()


class CertificatesRelation:
    """The relation. The library keeps the key in a secret of the application, and requests a renewal before expiry."""

    def __init__(self, charm: ops.CharmBase, application: Application) -> None:
        name = application.dns_name
        common_name = name if len(name) <= _LONGEST_COMMON_NAME else "istio-aux"
        self._requirer = TLSCertificatesRequiresV4(
            charm,
            RELATION,
            [CertificateRequestAttributes(common_name=common_name, sans_dns=frozenset({name}))],
            mode=Mode.APP,
            # The webhook would renew by itself after two thirds.
            renewal_relative_time=0.6,
            refresh_events=[charm.on.config_changed, charm.on.update_status],
        )
        self._charm = charm

    @property
    def is_related(self) -> bool:
        """Returns true if a provider is related."""
        return self._charm.model.get_relation(RELATION) is not None

    @property
    def certificate(self) -> Certificate | None:
        """Returns the certificate; None before it is issued, after it has expired, and without the relation.

        Only the leader may read it.
        """
        if not self.is_related:
            return None
        found, key = self._requirer.get_assigned_certificates()
        if not found or not key or found[0].certificate.expiry_time <= datetime.datetime.now(datetime.UTC):
            return None
        return Certificate(str(found[0].ca), _with_intermediates(found[0]), str(key))


def _with_intermediates(issued: ProviderCertificate) -> str:
    between = [each for each in issued.chain if each not in (issued.certificate, issued.ca)]
    return "\n".join(str(each).strip() for each in (issued.certificate, *between))
