"""A version of a custom resource with what its status says of it: whether a rename waits, and who keeps its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from slipstream_core.manifest.renames import held_back, pending_rename, waiting_rename
from slipstream_core.manifest.resources import ParsedResource, parse_resource
from slipstream_core.manifest.status import NameHolder


def version_key(raw: Mapping[str, Any]) -> tuple[object, ...]:
    """Beside the spec, all that `parse_version` goes by: the operator writes the rest of a status all the time."""
    metadata = raw["metadata"]
    return metadata.get("uid"), metadata.get("generation"), pending_rename(raw), name_holder_of(raw)


def parse_version(raw: Mapping[str, Any]) -> ParsedResource:
    """The object in a custom resource as `parse_resource` has it, but not usable while a rename in it waits."""
    parsed = msgspec.structs.replace(parse_resource(raw), name_holder=name_holder_of(raw))
    rename = waiting_rename(raw, parsed)
    return parsed if rename is None else held_back(parsed, rename)


def name_holder_of(raw: Mapping[str, Any]) -> NameHolder | None:
    """Who keeps the name that `raw` waits for, by its status; None where nobody does, or it cannot be read."""
    status = raw.get("status")
    try:
        return msgspec.convert(status.get("nameHolder") if isinstance(status, Mapping) else None, NameHolder | None)
    except msgspec.ValidationError:
        return None
