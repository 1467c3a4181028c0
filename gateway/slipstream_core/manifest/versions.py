"""The version of a custom resource that is in effect: the newest, or the last usable one while the newest is unusable,
waits for its rename, or is compared with the one that serves.

A running process keeps the last usable version in memory. For gateways and operators that start later, the operator
writes it into the object's status. The kill switch is always that of the newest version.

Clients request a model by its name, so a rename breaks their requests. The effective name is that of `status.lastGood`:
gateways and operator decide by the object alone, and all decide alike. The operator accepts a rename when no client has
requested the pair lately. An annotation accepts it at once, also without an operator.

A new revision of a pair with `serving.update.canary` takes effect in the same way: when the operator writes it into
`status.lastGood`, because its comparison with the serving one has succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from slipstream_core.manifest.check import Problem, show
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.resources import ParsedResource, parse_resource
from slipstream_core.manifest.revision import canary_of, needs_canary, revision_of
from slipstream_core.manifest.status import MAX_LAST_GOOD_CHARS, LastGood, NameHolder, part_of


class GoodVersion(NamedTuple):
    """A usable version of an object: as received from the API server, and parsed."""

    raw: Mapping[str, Any]
    parsed: ParsedResource

    @property
    def generation(self) -> int:
        return int(self.raw["metadata"].get("generation") or 0)


def good_version(
    raw: Mapping[str, Any], newest: ParsedResource, before: GoodVersion | None = None
) -> GoodVersion | None:
    """The last usable version of an object that is now `raw`, which was parsed as `newest`; None if there is none.

    `before` is this function's result for the previous version. The status of `raw` may have a later one.
    """
    if newest.item is not None:
        return GoodVersion(raw, newest)
    if before is not None and _uid(before.raw) != _uid(raw):
        before = None
    kept = kept_of(raw)
    if kept is None or (before is not None and before.generation >= kept.generation):
        return _without_switch(before)
    return kept_version(raw) or _without_switch(before)


def kept_version(raw: Mapping[str, Any]) -> GoodVersion | None:
    """The last usable version in the status of `raw`; None if there is none, or it is unusable."""
    kept = kept_of(raw)
    try:
        spec = None if kept is None else msgspec.json.decode(kept.spec, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    if kept is None or spec is None:
        return None
    version = {**raw, "metadata": {**raw["metadata"], "generation": kept.generation}, "spec": spec}
    parsed = parse_resource(version)
    return None if parsed.item is None else GoodVersion(version, parsed)


def to_keep(good: GoodVersion | None) -> LastGood | None:
    """`good` in the form of the status field; None if it is larger than a status may hold."""
    if good is None:
        return None
    spec = {name: value for name, value in good.raw["spec"].items() if name != "killSwitch"}
    text = msgspec.json.encode(spec, order="deterministic").decode()
    return LastGood(generation=good.generation, spec=text) if len(text) <= MAX_LAST_GOOD_CHARS else None


def kept_of(raw: Mapping[str, Any]) -> LastGood | None:
    """The last good spec in the status of `raw`; None if there is none, or it is unreadable."""
    return part_of(raw.get("status"), "lastGood", LastGood)


def _without_switch(good: GoodVersion | None) -> GoodVersion | None:
    """An older version with its kill switch off, because only the newest version's switch counts."""
    item = good.parsed.item if good is not None else None
    if good is None or item is None or not item.spec.kill_switch:
        return good
    spec = msgspec.structs.replace(item.spec, kill_switch=None)
    unkilled = msgspec.structs.replace(good.parsed, item=msgspec.structs.replace(item, spec=spec))
    return GoodVersion(good.raw, unkilled)


def _uid(raw: Mapping[str, Any]) -> object:
    return raw["metadata"].get("uid")


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
    if not isinstance(new, str) or kept is None or _is_newest(kept, raw):
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


class Comparison(NamedTuple):
    """A version of a pair with a new revision, and the version that serves."""

    new: ModelPair
    serving: ModelPair


def waiting_comparison(raw: Mapping[str, Any], parsed: ParsedResource) -> Comparison | None:
    """The comparison that the pair in `parsed`, which `parse_resource` returned for `raw`, needs before it takes
    effect; None if it needs none."""
    new, kept = parsed.item, kept_of(raw)
    if not isinstance(new, ModelPair) or canary_of(new) is None or kept is None or _is_newest(kept, raw):
        return None
    serving = kept_version(raw)
    item = None if serving is None else serving.parsed.item
    return Comparison(new, item) if isinstance(item, ModelPair) and needs_canary(new, item) else None


def compared(parsed: ParsedResource, comparison: Comparison) -> ParsedResource:
    """A version whose revision is not in effect, because it is compared with the serving one or was rolled back."""
    message = f"the revision {revision_of(comparison.new)} is not that of the serving version, see the status"
    return msgspec.structs.replace(parsed, item=None, canary=comparison.new, problems=(Problem("spec", message),))


def _is_newest(kept: LastGood, raw: Mapping[str, Any]) -> bool:
    metadata: Mapping[str, Any] = raw.get("metadata") or {}
    return kept.generation == metadata.get("generation")


def version_key(raw: Mapping[str, Any]) -> tuple[object, ...]:
    """All inputs of `parse_version` beside the spec. The operator changes the rest of the status all the time."""
    metadata = raw["metadata"]
    kept = kept_of(raw)
    accepted = None if kept is None else kept.generation
    return metadata.get("uid"), metadata.get("generation"), pending_rename(raw), accepted, name_holder_of(raw)


def parse_version(raw: Mapping[str, Any]) -> ParsedResource:
    """The object of a custom resource as from `parse_resource`, but unusable while a rename in it waits, or while its
    revision is compared with the serving one."""
    parsed = msgspec.structs.replace(parse_resource(raw), name_holder=name_holder_of(raw))
    if (rename := waiting_rename(raw, parsed)) is not None:
        return held_back(parsed, rename)
    comparison = waiting_comparison(raw, parsed)
    return parsed if comparison is None else compared(parsed, comparison)


def name_holder_of(raw: Mapping[str, Any]) -> NameHolder | None:
    """The holder of the name that `raw` waits for, by its status; None if there is none, or it is unreadable."""
    return part_of(raw.get("status"), "nameHolder", NameHolder)
