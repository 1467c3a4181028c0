"""A ModelPair with the version in use and its problems. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.grants import API_KEY_FIELD, is_foreign_name
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.resources import ParsedResource, parse_resource
from slipstream_core.manifest.status import ModelPairStatus, read_status
from slipstream_core.manifest.versions import (
    GoodVersion,
    Rename,
    compared,
    good_version,
    held_back,
    waiting_comparison,
    waiting_rename,
)

from slipstream_operator.reconcile.annotations import unknown_annotations_of_pair, without_effect
from slipstream_operator.reconcile.canary import NewRevision, new_revision
from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.reconcile.usage import Usage, usage_of
from slipstream_operator.types import NameClaim, Observed

_FORBIDDEN = "gives the pods a privilege, which this operator forbids (--forbid-pod-privileges)"


class PairCase(msgspec.Struct, frozen=True, kw_only=True):
    """A pair that is reconciled `now`.

    `prior` is its last status. `newest` is its newest version, which is not usable while its `rename` waits, or while
    its revision, in `new`, is compared with the serving one or was rolled back. `good` is the version that counts, and
    `pair` the object in it; both are None without a usable version. `problems` prevent serving `pair`, or the newest
    version if `pair` is None.
    """

    observed: Observed
    now: datetime
    prior: ModelPairStatus
    usage: Usage
    newest: ParsedResource
    rename: Rename | None
    new: NewRevision | None
    good: GoodVersion | None
    pair: ModelPair | None
    problems: tuple[Problem, ...]

    @property
    def generation(self) -> int:
        """The newest generation."""
        metadata: dict[str, Any] = self.observed.raw["metadata"]
        return int(metadata.get("generation") or 0)

    @property
    def served_generation(self) -> int:
        return self.generation if self.good is None else self.good.generation

    @property
    def ignored(self) -> tuple[str, ...]:
        """The fields and annotations that this version does not know."""
        fields = self.observed.ignored or self.newest.ignored
        return (*fields, *unknown_annotations_of_pair(self.observed.raw))

    @property
    def annotations_without_effect(self) -> tuple[str, ...]:
        new, rename = None if self.new is None else self.new.status, self.rename if self.usage.in_use else None
        return tuple(without_effect(self.observed.raw, self.prior, new, rename))

    @property
    def is_renamed_now(self) -> bool:
        """Whether the rename takes effect now: the pair must be checked against the others under its new name."""
        return self.rename is not None and not self.usage.in_use

    @property
    def claim(self) -> NameClaim | None:
        """The state of the model name that the pair waits for; None where it waits for none."""
        is_taken = self.pair is not None and unresolved_reason(self.problems) is Reason.MODEL_NAME_TAKEN
        return self.observed.name if is_taken else None


def pair_case(observed: Observed, now: datetime) -> PairCase:
    raw = observed.raw
    prior = read_status(raw.get("status"), ModelPairStatus) or ModelPairStatus()
    usage, parsed = usage_of(prior, observed.last_request, now), parse_resource(raw)
    rename = waiting_rename(raw, parsed)
    comparison = None if rename is not None else waiting_comparison(raw, parsed)
    new = None if comparison is None else new_revision(comparison, prior, observed, now)
    # As it was checked against the other objects.
    judged = parsed if rename is None else held_back(parsed, rename)
    judged = judged if comparison is None else compared(judged, comparison)
    is_accepted = (rename is None or not usage.in_use) and (new is None or new.is_promoted)
    newest = parsed if is_accepted else judged
    good = good_version(raw, newest, observed.last_good)
    pair = good.parsed.item if good is not None and isinstance(good.parsed.item, ModelPair) else None
    problems = observed.problems or newest.problems
    if pair is not None:  # problems of the newest spec are not those of the version in use
        problems = tuple(problem for problem in problems if problem not in judged.problems)
    if not observed.defaults.allows_privileges:
        problems += tuple(_forbidden(pair, None if new is None else new.pair))
    return PairCase(
        observed=observed,
        now=now,
        prior=prior,
        usage=usage,
        newest=newest,
        rename=rename,
        new=new,
        good=good,
        pair=pair,
        problems=problems,
    )


def _forbidden(*pairs: ModelPair | None) -> Iterator[Problem]:
    """The privileges that the pods of any of these versions would get, although the operator permits none."""
    fields = {field for pair in pairs if pair is not None for field in pair.serving.privileges}
    for field in sorted(fields):
        yield Problem(f"spec.serving.{field}", _FORBIDDEN)


def unresolved_reason(problems: Sequence[Problem]) -> Reason:
    if any(map(is_foreign_name, problems)):
        return Reason.MODEL_NAME_NOT_GRANTED
    if any(problem.path.endswith(API_KEY_FIELD) for problem in problems):
        return Reason.API_KEY_NOT_GRANTED
    if any(problem.message == _FORBIDDEN for problem in problems):
        return Reason.PRIVILEGES_FORBIDDEN
    taken = any(problem.path == "spec.model" for problem in problems)
    return Reason.MODEL_NAME_TAKEN if taken else Reason.UNRESOLVED
