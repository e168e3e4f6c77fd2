"""Restarts the webhook unit by unit, in the order of their numbers, when options change: pure.

Each unit publishes its command in the peer relation. A unit restarts once all units before it run the new command.
"""

import datetime
import hashlib
from collections.abc import Mapping, MutableMapping

TURN_TIMEOUT = datetime.timedelta(minutes=5)
"""Time that a unit waits for those before it, which may be unavailable."""

_RUNNING, _WAITS_FOR, _WAITS_SINCE = "running-command", "waits-for-command", "waits-since"


def announce(data: MutableMapping[str, str], command: str) -> None:
    """Publishes in a unit's peer data which command it runs."""
    data[_RUNNING] = _digest(command)
    for key in (_WAITS_FOR, _WAITS_SINCE):
        data.pop(key, None)


def is_its_turn(
    unit: str,
    data: MutableMapping[str, str],
    others: Mapping[str, Mapping[str, str]],
    command: str,
    now: datetime.datetime,
) -> bool:
    """Returns true if a unit may restart now. Otherwise its peer data records since when it waits."""
    wanted = _digest(command)
    if all(other.get(_RUNNING) == wanted for name, other in others.items() if _number(name) < _number(unit)):
        return True
    if data.get(_WAITS_FOR) != wanted:
        data.update({_WAITS_FOR: wanted, _WAITS_SINCE: now.isoformat()})
    return now >= datetime.datetime.fromisoformat(data[_WAITS_SINCE]) + TURN_TIMEOUT


def _digest(command: str) -> str:
    return hashlib.sha256(command.encode()).hexdigest()[:16]


def _number(unit: str) -> int:
    return int(unit.rsplit("/", 1)[1])
