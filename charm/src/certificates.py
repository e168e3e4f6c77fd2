"""Reads the certificate that the relation `certificates` issues. Without it, the webhook has its own."""

import datetime

import ops
from charmlibs.interfaces.tls_certificates import CertificateRequestAttributes, Mode, TLSCertificatesRequiresV4

from application import Application

RELATION = "certificates"
_LONGEST_COMMON_NAME = 64


class CertificatesRelation:
    """The relation. The library keeps the key in a secret of the application, and requests a renewal before expiry."""

    def __init__(self, charm: ops.CharmBase, application: Application) -> None:
        # The DNS name of the webhook's Service, which the API server verifies.
        name = f"{application.webhook}.{application.model}.svc"
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
    def certificate(self) -> dict[str, str] | None:
        """Returns the certificate in PEM, by the keys that the webhook's Secret has for the next one.

        None before it is issued, after it has expired, and without the relation. Only the leader may read it.
        """
        if not self.is_related:
            return None
        found, key = self._requirer.get_assigned_certificates()
        if not found or not key or found[0].certificate.expiry_time <= datetime.datetime.now(datetime.UTC):
            return None
        issued = found[0]
        intermediate = [each for each in issued.chain if each not in (issued.certificate, issued.ca)]
        chain = "\n".join(str(each).strip() for each in (issued.certificate, *intermediate))
        texts = {"next-ca.crt": issued.ca, "next.crt": chain, "next.key": key}
        return {name: f"{str(text).strip()}\n" for name, text in texts.items()}
