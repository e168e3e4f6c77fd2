"""Parses and checks the charm's options: pure. charmcraft.yaml describes them."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, ValidationError

import names
from mesh.selectors import Selector

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|M|G|Ki|Mi|Gi)?"
_QUANTITIES = re.compile(rf"none|(cpu|memory)={QUANTITY}(,(cpu|memory)={QUANTITY})*")


def _image(value: str) -> str:
    if not _IMAGE.fullmatch(value):
        raise ValueError("must be an image reference, such as registry.invalid/istio-aux/shim:0.1.0")
    return value


def _quantities(value: str) -> str:
    if not _QUANTITIES.fullmatch(value):
        raise ValueError(f'"{value}" must be cpu=QUANTITY, memory=QUANTITY or both, such as cpu=1m,memory=4Mi, or none')
    return value


def _names(value: str) -> tuple[str, ...]:
    listed = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    for name in listed:
        if not _DNS_LABEL.fullmatch(name):
            raise ValueError(f'"{name}" is not a valid name; separate names by commas')
    return listed


def _namespaces(value: str) -> tuple[str, ...]:
    listed = _names(value)
    if names.NEVER_INJECTED in listed:
        raise ValueError(f"{names.NEVER_INJECTED} cannot be opted in; remove it")
    return listed


class Settings(BaseModel):
    """All options, with valid values."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    failure_policy: Literal["fail", "ignore"] = "fail"
    namespaces: Annotated[tuple[str, ...], BeforeValidator(_namespaces)] = ()
    applications: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    namespace_selector: Annotated[Selector | None, BeforeValidator(Selector.parse)] = None
    native_sidecars: Literal["auto", "enabled", "disabled"] = "auto"
    log_level: Literal["off", "error", "warn", "info", "debug", "trace"] = "info"
    require_sidecar: StrictBool = False
    webhook_timeout: Annotated[StrictInt, Field(ge=1, le=30)] = 2
    shim_image: Annotated[str, BeforeValidator(_image)] = "registry.invalid/istio-aux/shim:0.1.0"
    shim_requests: Annotated[str, BeforeValidator(_quantities)] = "cpu=1m,memory=4Mi"
    shim_limits: Annotated[str, BeforeValidator(_quantities)] = "memory=16Mi"
    delivery: Literal["copy", "image-volume"] = "copy"
    tenancy: StrictBool = False

    @property
    def has_shim_image(self) -> bool:
        """Returns true if the option is set: no registry has the name of a revision's default."""
        return not self.shim_image.startswith("registry.invalid/")

    @property
    def selector(self) -> Selector | None:
        """Returns the selector in force: without the shim's image no option opts in."""
        return self.namespace_selector if self.has_shim_image else None

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> "Settings":
        """Parses options by their names in charmcraft.yaml. Missing ones get their defaults."""
        return cls(**{option.replace("-", "_"): value for option, value in options.items()})


def problems(error: ValidationError) -> str:
    """Describes every invalid option, with the values that it accepts."""
    return "; ".join(_problem(each) for each in error.errors())


def _problem(error: Any) -> str:  # noqa: ANN401 - pydantic's type of an error is not public
    option = str(error["loc"][0]).replace("_", "-")
    if error["type"] == "value_error":
        return f"{option}: {error['ctx']['error']}"
    return f'{option}: "{error["input"]}" is invalid: {error["msg"].replace("Input should be", "must be")}'
