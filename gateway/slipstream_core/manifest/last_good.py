"""The last usable version of an object: it is served while the newest version is unusable.

A running process keeps it in memory. For gateways and operators that start later, the operator writes it into the
object's status. The kill switch is always that of the newest version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.resources import ParsedResource, parse_resource
from slipstream_core.manifest.status import MAX_LAST_GOOD_CHARS, LastGood


class GoodVersion(NamedTuple):
    """A usable version of an object: as received from the API server, and parsed."""

    raw: Mapping[str, Any]
    parsed: ParsedResource

    @property
    def generation(self) -> int:
        return _generation(self.raw)


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
    status = raw.get("status")
    try:
        return msgspec.convert(status.get("lastGood") if isinstance(status, Mapping) else None, LastGood | None)
    except msgspec.ValidationError:
        return None


def _without_switch(good: GoodVersion | None) -> GoodVersion | None:
    """An older version with its kill switch off, because only the newest version's switch counts."""
    item = good.parsed.item if good is not None else None
    if good is None or item is None or not item.spec.kill_switch:
        return good
    # Two branches, because the type of the replaced spec depends on the type of the object.
    if isinstance(item, ModelPair):
        pair_spec = msgspec.structs.replace(item.spec, kill_switch=None)
        unkilled = msgspec.structs.replace(good.parsed, item=msgspec.structs.replace(item, spec=pair_spec))
    else:
        policy_spec = msgspec.structs.replace(item.spec, kill_switch=None)
        unkilled = msgspec.structs.replace(good.parsed, item=msgspec.structs.replace(item, spec=policy_spec))
    return GoodVersion(good.raw, unkilled)


def _uid(raw: Mapping[str, Any]) -> object:
    return raw["metadata"].get("uid")


def _generation(raw: Mapping[str, Any]) -> int:
    return int(raw["metadata"].get("generation") or 0)
