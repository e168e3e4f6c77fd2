"""Parses label selectors in kubectl's syntax, for the option `namespace-selector`. Pure."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

_DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_KEY = rf"(?:{_DNS_LABEL}(?:\.{_DNS_LABEL})*/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_EXISTENCE = re.compile(rf"(!?)\s*({_KEY})")
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


@dataclasses.dataclass(frozen=True)
class Requirement:
    """A requirement, with an operator of the Kubernetes API: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Returns true if labels meet it. As in Kubernetes, NotIn also matches if the label is absent."""
        if self.operator in ("Exists", "DoesNotExist"):
            return (self.key in labels) == (self.operator == "Exists")
        return (labels.get(self.key) in self.values) == (self.operator == "In")

    @property
    def expression(self) -> dict[str, Any]:
        """Returns an entry of `matchExpressions`."""
        values = {"values": list(self.values)} if self.values else {}
        return {"key": self.key, "operator": self.operator, **values}

    def cel(self, labels: str) -> str:
        """Returns the requirement as a CEL expression over a map of labels."""
        key = json.dumps(self.key)
        if self.operator in ("Exists", "DoesNotExist"):
            return f"{'' if self.operator == 'Exists' else '!'}({key} in {labels})"
        found = f"({key} in {labels} && {labels}[{key}] in {json.dumps(self.values)})"
        return found if self.operator == "In" else f"!{found}"


@dataclasses.dataclass(frozen=True)
class Selector:
    """One or more requirements, all of which have to be met."""

    requirements: tuple[Requirement, ...]

    @classmethod
    def parse(cls, text: str) -> "Selector | None":
        """Parses `key=value,key in (a,b),!key`; None if it is empty. Raises ValueError if it is not a selector."""
        if not text.strip():
            return None
        return cls(tuple(_requirement(part.strip()) for part in _COMMA_OUTSIDE_PARENTHESES.split(text)))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Returns true if labels meet all requirements."""
        return all(each.matches(labels) for each in self.requirements)

    @property
    def expressions(self) -> list[dict[str, Any]]:
        """Returns the value of `matchExpressions`."""
        return [each.expression for each in self.requirements]

    def cel(self, labels: str) -> str:
        """Returns all requirements as a CEL expression over a map of labels."""
        return " && ".join(each.cel(labels) for each in self.requirements)


def _requirement(text: str) -> Requirement:
    if found := _SET.fullmatch(text):
        values = tuple(value.strip() for value in found[3].split(","))
        if all(re.fullmatch(_VALUE, value) for value in values) and any(values):
            return Requirement(found[1], "In" if found[2] == "in" else "NotIn", values)
    elif found := _EQUALITY.fullmatch(text):
        return Requirement(found[1], "NotIn" if found[2] == "!=" else "In", (found[3],))
    elif found := _EXISTENCE.fullmatch(text):
        return Requirement(found[2], "DoesNotExist" if found[1] else "Exists")
    raise ValueError(f'"{text}" is not a label selector, such as key=value')
