"""A parent's status in the cluster: written when it says something new, and figures alone only now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from slipstream_gateway.manifest.status import ModelPairStatus, SpeculationPolicyStatus

from slipstream_operator.cluster.api import KubeApi
from slipstream_operator.cluster.cache import ObjectCache, key_of
from slipstream_operator.cluster.comparison import merge_patch, without_blanks
from slipstream_operator.cluster.resources import Kind, ObjectKey, Resource
from slipstream_operator.errors import ApiConflict
from slipstream_operator.plan import KubeObject

FIGURES_EVERY_S = 30.0

_FIGURES = frozenset({"accept", "p95", "checkpoint"})
_CLASS_FIGURES = frozenset({"speculative", "control", "message"})
_CONDITION_FIGURES = frozenset({"message"})

_logger = logging.getLogger(__name__)


class StatusWriter:
    """Writes statuses of ModelPairs and SpeculationPolicies, and remembers what it wrote.

    `on_newer` takes in an object as it came back. `clock_s` is monotonic, in seconds.
    """

    def __init__(
        self,
        api: KubeApi,
        cache: ObjectCache,
        resources: dict[Kind, Resource],
        *,
        on_newer: Callable[[KubeObject], object],
        clock_s: Callable[[], float],
    ) -> None:
        self._api, self._cache, self._resources = api, cache, resources
        self._on_newer, self._clock_s = on_newer, clock_s
        self._written: dict[ObjectKey, tuple[str, dict[str, Any]]] = {}
        self._unkept: dict[ObjectKey, dict[str, Any]] = {}
        self._written_at: dict[ObjectKey, float] = {}

    def prior(self, raw: KubeObject) -> dict[str, Any]:
        """The status to go on from: the object's own, unless somebody else has put a hand to what we wrote."""
        live: dict[str, Any] = raw.get("status") or {}
        uid, written = self._written.get(key := key_of(raw), ("", {}))
        if uid == raw["metadata"]["uid"] and self._cache.is_status_foreign(key):
            return written
        return live

    async def write(self, raw: KubeObject, status: ModelPairStatus | SpeculationPolicyStatus) -> float | None:
        """Make `status` that of the object `raw`. Returns in how many seconds figures are due that wait for their turn.

        Raises:
            ApiError: a conflict is one too; the newest version is known by then.
        """
        key = key_of(raw)
        live, wanted = raw.get("status") or {}, without_blanks(msgspec.to_builtins(status))
        patch = merge_patch(live, wanted)
        if not patch or patch == self._unkept.get(key):
            return None
        waited_s = self._clock_s() - self._written_at.get(key, -FIGURES_EVERY_S)
        if waited_s < FIGURES_EVERY_S and _without_figures(live) == _without_figures(wanted):
            return FIGURES_EVERY_S - waited_s
        answer = await self._send(key, raw, patch)
        self._on_newer(answer)
        self._written[key] = (raw["metadata"]["uid"], wanted)
        self._written_at[key] = self._clock_s()
        self._note_unkept(key, merge_patch(answer.get("status") or {}, wanted))
        return None

    def forget(self, key: ObjectKey) -> None:
        for known in (self._written, self._unkept, self._written_at):
            known.pop(key, None)

    async def _send(self, key: ObjectKey, raw: KubeObject, patch: dict[str, Any]) -> KubeObject:
        path = self._resources[key.kind].path(key.namespace, key.name)
        # With the version that it was decided on: whoever wrote meanwhile, perhaps another operator, is heard first.
        body = {"metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]}, "status": patch}
        try:
            return await self._api.merge(f"{path}/status", body)
        except ApiConflict:
            if (newest := await self._api.get(path)) is not None:
                self._on_newer(newest)
            raise

    def _note_unkept(self, key: ObjectKey, unkept: dict[str, Any]) -> None:
        """Fields that the API server drops are not sent again and again."""
        if not unkept:
            self._unkept.pop(key, None)
            return
        if not self._unkept:
            _logger.warning(
                "the API server does not keep %s of the status of %s: its definitions are of another version",
                ", ".join(sorted(unkept)),
                key,
            )
        self._unkept[key] = unkept


def _without_figures(status: dict[str, Any]) -> dict[str, Any]:
    """What of a status is worth a write at once."""
    kept = {name: value for name, value in status.items() if name not in _FIGURES}
    for name, figures in (("classes", _CLASS_FIGURES), ("conditions", _CONDITION_FIGURES)):
        if isinstance(items := kept.get(name), list):
            kept[name] = [_without(item, figures) for item in items]
    return kept


def _without(item: Any, names: frozenset[str]) -> Any:
    return {name: value for name, value in item.items() if name not in names} if isinstance(item, dict) else item
