"""Waiting for conditions in the cluster."""

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_TIMEOUT = 150
"""Seconds that a condition may take on two busy cores."""

T = TypeVar("T")


def until(what: str, ask: Callable[[], T | None]) -> T:
    """Asks until the answer is true, and fails with what was waited for."""
    began = time.monotonic()
    while not (answer := ask()):
        assert time.monotonic() - began < WAIT_TIMEOUT, f"waited {WAIT_TIMEOUT} s for {what}"
        time.sleep(0.2)
    return answer
