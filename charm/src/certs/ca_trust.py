"""The CAs that the API server trusts, and when a unit may serve a certificate of one: pure.

A certificate is served only after its CA has been in the configuration's `caBundle` for a moment. Units publish in the
peer relation which CAs they use and want to use; the leader writes all of them, and publishes since when.
"""

import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping, MutableMapping

from certs import serving_cert
from certs.serving_cert import ServingCert

SETTLING = datetime.timedelta(seconds=5)
"""Time in which API servers receive a new `caBundle`."""

_WANTED, _SERVED, _SERVED_BEFORE = "desired-ca", "served-ca", "previously-served-ca"
_TRUSTED = "trusted-cas"


@dataclasses.dataclass(frozen=True)
class TrustedCAs:
    """Fingerprints of the CAs in the configuration that the leader wrote last, each with the time it was added."""

    since: Mapping[str, datetime.datetime] = dataclasses.field(default_factory=dict[str, datetime.datetime])

    def after(self, ca_certificates: Iterable[str], now: datetime.datetime) -> "TrustedCAs":
        """Returns what is trusted after a configuration with these CAs has been written."""
        written = {serving_cert.fingerprint(ca) for ca in ca_certificates}
        return TrustedCAs({each: self.since.get(each, now) for each in sorted(written)})

    def may_serve(self, cert: ServingCert, now: datetime.datetime, *, instead: bool) -> bool:
        """Returns true if a unit may serve this now; `instead` if it serves another certificate meanwhile.

        If no CA is trusted yet, as before `juju trust`, the API server does not call the webhook and any
        certificate may be served.
        """
        since = self.since.get(serving_cert.fingerprint(cert.ca))
        if instead:
            return since is not None and now >= since + SETTLING
        return since is not None or not self.since

    def save(self, data: MutableMapping[str, str]) -> None:
        """Writes it into the application's peer data."""
        data[_TRUSTED] = json.dumps({each: since.isoformat() for each, since in self.since.items()})

    @classmethod
    def load(cls, data: Mapping[str, str]) -> "TrustedCAs":
        """Reads it from the application's peer data."""
        saved: dict[str, str] = json.loads(data.get(_TRUSTED, "{}"))
        return cls({each: datetime.datetime.fromisoformat(since) for each, since in saved.items()})


def announce_desired(data: MutableMapping[str, str], cert: ServingCert) -> None:
    """Publishes in a unit's peer data that it wants to serve this."""
    data[_WANTED] = cert.ca


def announce_served(data: MutableMapping[str, str], cert: ServingCert) -> None:
    """Publishes in a unit's peer data that it serves this from now on."""
    served = data.get(_SERVED)
    if served == cert.ca:
        return
    if served:
        data[_SERVED_BEFORE] = served
    data[_SERVED] = cert.ca


def ca_certificates(own: Iterable[str], units: Iterable[Mapping[str, str]]) -> list[str]:
    """Returns all CAs that the API server has to trust, each once, in a stable order."""
    announced = (unit[key] for unit in units for key in (_WANTED, _SERVED, _SERVED_BEFORE) if unit.get(key))
    by_fingerprint = {
        serving_cert.fingerprint(each): each.strip() for text in (*own, *announced) for each in serving_cert.split(text)
    }
    return [by_fingerprint[key] for key in sorted(by_fingerprint)]
