"""A rule of a custom resource in Common Expression Language, and pieces of such rules."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec


class Rule(NamedTuple):
    """`rule` must be true of `self`; else `message`."""

    rule: str
    message: str


def or_default(field: str, default: str) -> str:
    """The value of `field`, or `default` where it is absent."""
    return f"(has({field}) ? {field} : {default})"


def default_of(kind: type[msgspec.Struct], name: str) -> Any:
    """The default of the field that a manifest calls `name`."""
    return next(field.default for field in msgspec.structs.fields(kind) if field.encode_name == name)
