"""Reads the certificate that the relation `certificates` issues to this unit, by the library of that interface."""

import ops
from charmlibs.interfaces.tls_certificates import (
    CertificateRequestAttributes,
    Mode,
    ProviderCertificate,
    TLSCertificatesRequiresV4,
)

from application import Application
from certs.serving_cert import ServingCert

RELATION = "certificates"
_LONGEST_COMMON_NAME = 64


class TlsRelation:
    """The relation. The library stores the key in a secret of the unit, and requests a renewal before expiry."""

    def __init__(self, charm: ops.CharmBase, application: Application) -> None:
        names = application.dns_names
        common_name = next((name for name in names if len(name) <= _LONGEST_COMMON_NAME), "istio-aux")
        self._requirer = TLSCertificatesRequiresV4(
            charm,
            RELATION,
            [CertificateRequestAttributes(common_name=common_name, sans_dns=frozenset(names))],
            # Each unit's own: only the leader could read a certificate of the application, and all units serve.
            mode=Mode.UNIT,
            refresh_events=[charm.on.config_changed, charm.on.update_status],
        )
        self._charm = charm

    @property
    def is_related(self) -> bool:
        """Returns true if a provider is related."""
        return self._charm.model.get_relation(RELATION) is not None

    @property
    def cert(self) -> ServingCert | None:
        """Returns the certificate; None before it is issued and after the relation is gone."""
        if not self.is_related:
            return None
        found, key = self._requirer.get_assigned_certificates()
        if not found or not key:
            return None
        return ServingCert(str(found[0].ca), _with_intermediates(found[0]), str(key))


def _with_intermediates(issued: ProviderCertificate) -> str:
    """Returns the certificate, followed by the intermediate ones between it and the CA."""
    between = [each for each in issued.chain if each not in (issued.certificate, issued.ca)]
    return "\n".join(str(each).strip() for each in (issued.certificate, *between))
