"""Annotations that have no effect: an unknown name, or a value that accepts nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slipstream_core.manifest.check import show
from slipstream_core.manifest.naming import ALLOW_DELETE, APPROVE
from slipstream_core.manifest.pair_rules import RESERVED_PREFIX
from slipstream_core.manifest.status import CanaryPhase, CanaryStatus, ModelPairStatus
from slipstream_core.manifest.versions import ALLOW_RENAME, Rename

_OF_PAIR = (APPROVE, ALLOW_RENAME, ALLOW_DELETE)


def unknown_annotations(raw: Mapping[str, Any], known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Slipstream's annotations that are not `known`, as paths with what would be accepted. No policy has any."""
    accepted = f"known: {', '.join(known)}" if known else "policies have none"
    names = (name for name in annotations_of(raw) if name.startswith(RESERVED_PREFIX) and name not in known)
    return tuple(f"metadata.annotations[{name}] ({accepted})" for name in sorted(names))


def unknown_annotations_of_pair(raw: Mapping[str, Any]) -> tuple[str, ...]:
    return unknown_annotations(raw, _OF_PAIR)


def without_effect(
    raw: Mapping[str, Any], prior: ModelPairStatus, new: CanaryStatus | None, rename: Rename | None
) -> Iterator[str]:
    """One sentence for each annotation of a pair whose value accepts nothing: the value, and what would be accepted.
    `new` is the state of the revision that is compared with the serving one, `rename` the one that waits."""
    found = annotations_of(raw)
    for name, reason in (
        (APPROVE, _approval(found.get(APPROVE), prior, new)),
        (ALLOW_RENAME, _rename(found.get(ALLOW_RENAME), rename)),
        (ALLOW_DELETE, None if found.get(ALLOW_DELETE) in (None, "true") else 'it permits the deletion as "true" only'),
    ):
        if reason is not None:
            yield f"the annotation {name}: {show(found[name])} has no effect: {reason}"


def annotations_of(raw: Mapping[str, Any]) -> Mapping[str, str]:
    return raw["metadata"].get("annotations") or {}


def _approval(value: str | None, prior: ModelPairStatus, new: CanaryStatus | None) -> str | None:
    """The approval of a revision that served, or was rolled back, is left over."""
    judged = () if prior.canary is None else (prior.canary.revision, prior.canary.serving)
    if value is None or value in (*judged, *prior.served) or (new is not None and value == new.revision):
        return None
    if new is not None and new.phase in (CanaryPhase.STARTING, CanaryPhase.COMPARING):
        return f"the revision that is compared is {new.revision}"
    return "no revision waits for an approval"


def _rename(value: str | None, rename: Rename | None) -> str | None:
    """Without a rename that waits, the value is left over, or that of a rename to come."""
    if value is None or rename is None:
        return None
    return f"the name that waits is {show(rename.new)}"
