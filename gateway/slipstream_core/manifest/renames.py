"""Renames of a pair's model, which take effect once the operator has accepted them.

Clients request a model by its name, so a rename breaks their requests. The effective name is that of `status.lastGood`:
gateways and operator decide by the object alone, and all decide alike. The operator accepts a rename when no client has
requested the pair lately. An annotation accepts it at once, also without an operator.
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
    """A rename that is not yet accepted, from the effective name to that of the newest spec."""

    old: str
    new: str


def pending_rename(raw: Mapping[str, Any]) -> Rename | None:
    """The rename of `raw` relative to its status; None if there is none, or an annotation accepts it."""
    metadata, spec = raw.get("metadata") or {}, raw.get("spec")
    new = spec.get("model") if isinstance(spec, Mapping) and raw.get("kind") == "ModelPair" else None
    kept = kept_of(raw)
    if not isinstance(new, str) or kept is None or kept.generation == metadata.get("generation"):
        return None
    old, annotations = model_kept(kept), metadata.get("annotations")
    is_allowed = isinstance(annotations, Mapping) and annotations.get(ALLOW_RENAME) == new
    return None if old is None or old == new or is_allowed else Rename(old, new)


def model_kept(kept: LastGood) -> str | None:
    """The model name of a pair's last good spec; None if it is unreadable."""
    try:
        return msgspec.json.decode(kept.spec, type=_Named).model
    except msgspec.MsgspecError:
        return None


def waiting_rename(raw: Mapping[str, Any], parsed: ParsedResource) -> Rename | None:
    """The rename that is the only reason why `raw`, which `parse_resource` returned as `parsed`, is not served."""
    rename = None if parsed.item is None else pending_rename(raw)
    return None if rename is None or kept_version(raw) is None else rename


def held_back(parsed: ParsedResource, rename: Rename) -> ParsedResource:
    """A version that is not yet effective."""
    message = (
        f"{show(rename.new)} replaces {show(rename.old)} once the operator has accepted the rename; to accept it now, "
        f"set the annotation {ALLOW_RENAME}: {show(rename.new)}"
    )
    return msgspec.structs.replace(parsed, item=None, problems=(Problem("spec.model", message),))
