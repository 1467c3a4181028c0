"""A change of a pair's model name, which counts once the operator has accepted it.

Clients ask for a model by its name, so that a rename ends what they do. The name that counts is that of
`status.lastGood`: gateways and operator decide by the object alone, and all alike. The operator accepts a rename when
no client has asked for the pair lately. An annotation accepts it at once, also without an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from slipstream_core.manifest.check import Problem, show
from slipstream_core.manifest.last_good import kept_of, kept_version
from slipstream_core.manifest.resources import ParsedResource
from slipstream_core.manifest.status import LastGood

ALLOW_RENAME = "slipstream.dev/allow-rename"
"""The annotation of a pair that accepts a rename; its value is the new name."""


class _Named(msgspec.Struct):
    model: str


class Rename(NamedTuple):
    """A rename that nobody has accepted yet, from the name that counts to that of the newest spec."""

    old: str
    new: str


def pending_rename(raw: Mapping[str, Any]) -> Rename | None:
    """The rename that `raw` has against its status; None where it has none, or an annotation accepts it."""
    metadata, spec = raw.get("metadata") or {}, raw.get("spec")
    new = spec.get("model") if isinstance(spec, Mapping) and raw.get("kind") == "ModelPair" else None
    kept = kept_of(raw)
    if not isinstance(new, str) or kept is None or kept.generation == metadata.get("generation"):
        return None
    old, annotations = model_kept(kept), metadata.get("annotations")
    is_allowed = isinstance(annotations, Mapping) and annotations.get(ALLOW_RENAME) == new
    return None if old is None or old == new or is_allowed else Rename(old, new)


def model_kept(kept: LastGood) -> str | None:
    """The model name of a kept spec of a pair; None where it cannot be read."""
    try:
        return msgspec.json.decode(kept.spec, type=_Named).model
    except msgspec.MsgspecError:
        return None


def waiting_rename(raw: Mapping[str, Any], parsed: ParsedResource) -> Rename | None:
    """The rename that alone keeps `raw` from being served, which `parse_resource` gave as `parsed`."""
    rename = None if parsed.item is None else pending_rename(raw)
    return None if rename is None or kept_version(raw) is None else rename


def held_back(parsed: ParsedResource, rename: Rename) -> ParsedResource:
    """A version that does not count yet."""
    message = (
        f"{show(rename.new)} takes the place of {show(rename.old)} once the operator has accepted it, or by the "
        f"annotation {ALLOW_RENAME}: {show(rename.new)}"
    )
    return msgspec.structs.replace(parsed, item=None, problems=(Problem("spec.model", message),))
