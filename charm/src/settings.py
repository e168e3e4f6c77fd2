"""The charm's options, checked: pure. What each option means is in charmcraft.yaml."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar, cast

import names

Option = str | int | float | bool
FailurePolicy = Literal["Fail", "Ignore"]

FAILURE_POLICIES: dict[str, FailurePolicy] = {"fail": "Fail", "ignore": "Ignore"}
NATIVE_SIDECARS = ("auto", "on", "off")
LOG_LEVELS = ("off", "error", "warn", "info", "debug", "trace")
DELIVERIES = ("copy", "image-volume")
TIMEOUTS = range(1, 31)
"""What the API server takes as `timeoutSeconds` of a webhook."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
)

T = TypeVar("T")


class WrongOptions(Exception):
    """At least one option has a value that it cannot have. `problems` has a line for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclasses.dataclass(frozen=True)
class Settings:
    """All options, each with a value that it can have."""

    failure_policy: FailurePolicy
    namespaces: tuple[str, ...]
    native_sidecars: str
    log_level: str
    require_sidecar: bool
    webhook_timeout: int
    shim_image: str
    delivery: str

    @classmethod
    def parse(cls, options: Mapping[str, Option]) -> "Settings":
        """Check every option. Raises WrongOptions with all that is wrong, not only the first."""
        problems: list[str] = []

        def checked(option: str, check: Callable[[Option], T]) -> T:
            try:
                return check(options.get(option, ""))
            except ValueError as problem:
                problems.append(f"{option}: {problem}")
                return cast("T", None)

        settings = cls(
            failure_policy=checked("failure-policy", _failure_policy),
            namespaces=checked("namespaces", _namespaces),
            native_sidecars=checked("native-sidecars", _one_of(NATIVE_SIDECARS)),
            log_level=checked("log-level", _one_of(LOG_LEVELS)),
            require_sidecar=checked("require-sidecar", _switch),
            webhook_timeout=checked("webhook-timeout", _timeout),
            shim_image=checked("shim-image", _image),
            delivery=checked("delivery", _one_of(DELIVERIES)),
        )
        if problems:
            raise WrongOptions(problems)
        return settings


def _one_of(allowed: Iterable[str]) -> Callable[[Option], str]:
    choices = tuple(allowed)

    def check(value: Option) -> str:
        if value not in choices:
            raise ValueError(f'"{value}" is none of {", ".join(choices)}')
        return str(value)

    return check


def _failure_policy(value: Option) -> FailurePolicy:
    return FAILURE_POLICIES[_one_of(FAILURE_POLICIES)(value)]


def _switch(value: Option) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f'"{value}" is none of true, false')
    return value


def _timeout(value: Option) -> int:
    if not isinstance(value, int) or value not in TIMEOUTS:
        raise ValueError(f'"{value}" is not within {TIMEOUTS[0]} to {TIMEOUTS[-1]} seconds')
    return value


def _image(value: Option) -> str:
    if not _IMAGE.fullmatch(str(value)):
        raise ValueError(f'"{value}" is no image reference, such as registry.invalid/istio-aux/shim:0.1.0')
    return str(value)


def _namespaces(value: Option) -> tuple[str, ...]:
    listed = [name.strip() for name in str(value).split(",") if name.strip()]
    for name in listed:
        if not _DNS_LABEL.fullmatch(name):
            raise ValueError(f'"{name}" is no name of a namespace; they are separated by commas')
        if name == names.NEVER_INJECTED:
            raise ValueError(f"{name} cannot be opted in; take it out")
    return tuple(dict.fromkeys(listed))
