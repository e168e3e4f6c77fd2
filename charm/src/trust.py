"""Which authorities the API server trusts, and when a unit may serve a certificate of one: pure.

A certificate is served only after its authority has been in the configuration's `caBundle` for a moment. Units say
in the peer relation whose certificate they serve and want to serve; the leader trusts all of them, and says since when.
"""

import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping, MutableMapping

import certificates
from certificates import Pair

SETTLING = datetime.timedelta(seconds=5)
"""How long API servers may take to hear of a new `caBundle`."""

_WANTED, _SERVED, _SERVED_BEFORE = "wanted-authority", "served-authority", "served-authority-before"
_TRUSTED = "trusted-authorities"


@dataclasses.dataclass(frozen=True)
class Trusted:
    """Fingerprints of the authorities in the configuration that the leader wrote last, with the time since when."""

    since: Mapping[str, datetime.datetime] = dataclasses.field(default_factory=dict[str, datetime.datetime])

    def after(self, authorities: Iterable[str], now: datetime.datetime) -> "Trusted":
        """What is trusted after a configuration with these authorities has been written."""
        written = {certificates.fingerprint(authority) for authority in authorities}
        return Trusted({each: self.since.get(each, now) for each in sorted(written)})

    def may_serve(self, pair: Pair, now: datetime.datetime, *, instead: bool) -> bool:
        """Whether a unit may serve this now; `instead` of another certificate, which can wait, or of none.

        Without any trust known, as before `juju trust`, nobody calls the webhook and nothing can be spoiled.
        """
        since = self.since.get(certificates.fingerprint(pair.authority))
        if instead:
            return since is not None and now >= since + SETTLING
        return since is not None or not self.since

    def save(self, data: MutableMapping[str, str]) -> None:
        """Write it into the application's peer data."""
        data[_TRUSTED] = json.dumps({each: since.isoformat() for each, since in self.since.items()})

    @classmethod
    def load(cls, data: Mapping[str, str]) -> "Trusted":
        """Read it from the application's peer data."""
        saved: dict[str, str] = json.loads(data.get(_TRUSTED, "{}"))
        return cls({each: datetime.datetime.fromisoformat(since) for each, since in saved.items()})


def want(data: MutableMapping[str, str], pair: Pair) -> None:
    """Say in a unit's peer data that it wants to serve this."""
    data[_WANTED] = pair.authority


def serve(data: MutableMapping[str, str], pair: Pair) -> None:
    """Say in a unit's peer data that it serves this from now on."""
    served = data.get(_SERVED)
    if served == pair.authority:
        return
    if served:
        data[_SERVED_BEFORE] = served
    data[_SERVED] = pair.authority


def authorities(own: Iterable[str], units: Iterable[Mapping[str, str]]) -> list[str]:
    """All that the API server has to trust, each once, in an order that does not change by itself."""
    announced = (unit[key] for unit in units for key in (_WANTED, _SERVED, _SERVED_BEFORE) if unit.get(key))
    by_fingerprint = {
        certificates.fingerprint(each): each.strip() for text in (*own, *announced) for each in certificates.split(text)
    }
    return [by_fingerprint[key] for key in sorted(by_fingerprint)]
