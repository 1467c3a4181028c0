"""Writes the status of parents: at once for a new fact, and at intervals if only figures changed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeConflict
from slipstream_core.manifest.status import ModelPairStatus, SpeculationPolicyStatus

from slipstream_operator.cluster.cache import ObjectCache, key_of
from slipstream_operator.cluster.comparison import merge_patch, without_blanks
from slipstream_operator.cluster.resources import Kind, ObjectKey, Resource
from slipstream_operator.cluster.sharing import Sharing
from slipstream_operator.types import KubeObject

FIGURES_EVERY_S = 30.0
FIRST_REPAIR_S = 0.2  # the pause before the first repair of a status that another client changed
DISPUTE_OVER_S = 120.0

_FIGURES = frozenset({"accept", "p95", "checkpoint", "lastRequestTime"})
_CLASS_FIGURES = frozenset({"speculative", "control", "message"})
_CANARY_FIGURES = frozenset({"samples", "change", "message"})
_CONDITION_FIGURES = frozenset({"message"})

_logger = logging.getLogger(__name__)


Status = TypeVar("Status", ModelPairStatus, SpeculationPolicyStatus)


class _Written(NamedTuple):
    """The status written into the object `uid`, and the part of it that the API server has stored (`kept`)."""

    uid: str
    status: dict[str, Any]
    kept: dict[str, Any]


class _Dispute(NamedTuple):
    """The number of consecutive repairs of a status, and the time of the next allowed repair. The pause grows with each
    repair, up to the interval of figures."""

    times: int
    due_s: float

    def after(self, now_s: float) -> _Dispute:
        """The next state, after one more repair."""
        times = self.times + 1 if now_s < self.due_s + DISPUTE_OVER_S else 1
        return _Dispute(times, now_s + min(FIGURES_EVERY_S, FIRST_REPAIR_S * 2.0 ** min(times - 1, 30)))


_NO_DISPUTE = _Dispute(0, -math.inf)


class StatusWriter:
    """Writes statuses of ModelPairs and SpeculationPolicies, and remembers what it wrote.

    `on_newer` is called with each object that the API server returns. `clock_s` is monotonic, in seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        cache: ObjectCache,
        resources: dict[Kind, Resource],
        *,
        on_newer: Callable[[KubeObject], object],
        clock_s: Callable[[], float],
    ) -> None:
        self._client, self._cache, self._resources = client, cache, resources
        self._on_newer, self._clock_s = on_newer, clock_s
        self._sharing = Sharing()
        self._written: dict[ObjectKey, _Written] = {}
        self._disputes: dict[ObjectKey, _Dispute] = {}
        self._unkept: dict[ObjectKey, dict[str, Any]] = {}
        self._written_at: dict[ObjectKey, float] = {}

    def prior(self, raw: KubeObject) -> dict[str, Any]:
        """The status to continue from: the object's own, unless another client has changed what this operator wrote."""
        live: dict[str, Any] = raw.get("status") or {}
        written = self._written.get(key := key_of(raw))
        if written is None or written.uid != raw["metadata"]["uid"]:
            return live
        # A deleted field has no owner in managedFields; another operator would have left its own checkpoint.
        is_deleted = not live or ("checkpoint" in written.status and "checkpoint" not in live)
        return written.status if is_deleted or self._cache.is_status_foreign(key) else live

    async def write(
        self, raw: KubeObject, status: Status, *, seal: Callable[[Status], Status] | None = None
    ) -> float | None:
        """Write `status` into the object `raw`. Returns the seconds until a delayed write should be tried again: a
        write of figures, or of fields that another client keeps overwriting.

        `seal` adds the figures that are costly to compute; it is called only when they would be written.

        Raises:
            KubeError: also for a conflict, after the newest version was passed to `on_newer`.
        """
        key = key_of(raw)
        live, wanted = raw.get("status") or {}, _plain(status)
        are_figures = _without_figures(live) == _without_figures(wanted)
        due_s = self._due_s(key, raw, wanted, are_figures=are_figures) - self._clock_s()
        if seal is not None:
            if are_figures and due_s > 0:
                return due_s
            wanted = _plain(seal(status))
        patch = merge_patch(live, wanted)
        if not patch or patch == self._unkept.get(key):
            return None
        if due_s > 0:
            return due_s
        await self._put(key, raw, patch, wanted)
        return None

    def _due_s(self, key: ObjectKey, raw: KubeObject, wanted: dict[str, Any], *, are_figures: bool) -> float:
        """The time from which `wanted` may be written."""
        if are_figures:
            return self._written_at.get(key, -math.inf) + FIGURES_EVERY_S
        return self._disputes.get(key, _NO_DISPUTE).due_s if self._is_disputed(key, raw, wanted) else -math.inf

    async def _put(self, key: ObjectKey, raw: KubeObject, patch: dict[str, Any], wanted: dict[str, Any]) -> None:
        answer = await self._send(key, raw, patch)
        kept: dict[str, Any] = answer.get("status") or {}
        if self._is_disputed(key, raw, wanted):
            self._disputes[key] = self._disputes.get(key, _NO_DISPUTE).after(self._clock_s())
        self._on_newer(answer)
        self._written[key] = _Written(raw["metadata"]["uid"], *self._sharing.shared([wanted, kept]))
        self._written_at[key] = self._clock_s()
        self._note_unkept(key, merge_patch(kept, wanted))

    def forget(self, key: ObjectKey) -> None:
        for known in (self._written, self._unkept, self._written_at, self._disputes):
            known.pop(key, None)

    def _is_disputed(self, key: ObjectKey, raw: KubeObject, wanted: dict[str, Any]) -> bool:
        """Whether another client has changed the status since it was written as `wanted`."""
        written = self._written.get(key)
        if written is None or written.uid != raw["metadata"]["uid"]:
            return False
        is_same = _without_figures(written.status) == _without_figures(wanted)
        return is_same and _without_figures(raw.get("status") or {}) != _without_figures(written.kept)

    async def _send(self, key: ObjectKey, raw: KubeObject, patch: dict[str, Any]) -> KubeObject:
        path = self._resources[key.kind].path(key.namespace, key.name)
        # The patch has the version that the decision is based on. A write in between, perhaps by another operator,
        # causes a conflict.
        body = {"metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]}, "status": patch}
        try:
            return await self._client.merge(f"{path}/status", body)
        except KubeConflict:
            if (newest := await self._client.find(path)) is not None:
                self._on_newer(newest)
            raise

    def _note_unkept(self, key: ObjectKey, unkept: dict[str, Any]) -> None:
        """Remember the fields that the API server drops, so that they are not sent again and again."""
        if not unkept:
            self._unkept.pop(key, None)
            return
        if not self._unkept:
            _logger.warning(
                "the API server does not store %s of the status of %s: its CRDs are of another version",
                ", ".join(sorted(unkept)),
                key,
            )
        self._unkept[key] = unkept


def _plain(status: ModelPairStatus | SpeculationPolicyStatus) -> dict[str, Any]:
    plain: dict[str, Any] = without_blanks(msgspec.to_builtins(status))
    return plain


def _without_figures(status: dict[str, Any]) -> dict[str, Any]:
    """The part of a status that is written at once."""
    kept = {name: value for name, value in status.items() if name not in _FIGURES}
    if isinstance(canary := kept.get("canary"), dict):
        kept["canary"] = _without(canary, _CANARY_FIGURES)
    for name, figures in (("classes", _CLASS_FIGURES), ("conditions", _CONDITION_FIGURES)):
        if isinstance(items := kept.get(name), list):
            kept[name] = [_without(item, figures) for item in items]
    return kept


def _without(item: Any, names: frozenset[str]) -> Any:
    return {name: value for name, value in item.items() if name not in names} if isinstance(item, dict) else item
