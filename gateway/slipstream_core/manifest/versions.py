"""A version of a custom resource together with its status: whether a rename waits, and which namespace holds the
name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from slipstream_core.manifest.renames import held_back, pending_rename, waiting_rename
from slipstream_core.manifest.resources import ParsedResource, parse_resource
from slipstream_core.manifest.status import NameHolder


def version_key(raw: Mapping[str, Any]) -> tuple[object, ...]:
    """All inputs of `parse_version` beside the spec. The operator changes the rest of the status all the time."""
    metadata = raw["metadata"]
    return metadata.get("uid"), metadata.get("generation"), pending_rename(raw), name_holder_of(raw)


def parse_version(raw: Mapping[str, Any]) -> ParsedResource:
    """The object of a custom resource as from `parse_resource`, but unusable while a rename in it waits."""
    parsed = msgspec.structs.replace(parse_resource(raw), name_holder=name_holder_of(raw))
    rename = waiting_rename(raw, parsed)
    return parsed if rename is None else held_back(parsed, rename)


def name_holder_of(raw: Mapping[str, Any]) -> NameHolder | None:
    """The holder of the name that `raw` waits for, by its status; None if there is none, or it is unreadable."""
    status = raw.get("status")
    try:
        return msgspec.convert(status.get("nameHolder") if isinstance(status, Mapping) else None, NameHolder | None)
    except msgspec.ValidationError:
        return None
