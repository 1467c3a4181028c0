"""The API server's words about refused pods of a LeaderWorkerSet. Only Events have them, of the set and of its
StatefulSets; a Deployment has a condition, which is given to the set here."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeRejected

from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.types import KubeObject

LOOK_EVERY_S = 5.0

_FIELDS = "type=Warning,reason=FailedCreate"
_KINDS = frozenset({"LeaderWorkerSet", "StatefulSet", "Pod"})
_logger = logging.getLogger(__name__)


class RefusedPods:
    """Looks for the Events while pods of a LeaderWorkerSet are missing."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._messages: dict[ObjectKey, dict[str, str]] = {}  # by the pair, then by the name of the set

    async def look(self, pair: ObjectKey, workload: KubeObject | None, pods: Sequence[KubeObject]) -> float | None:
        """Look for refused pods of `workload`, which has `pods`. Returns the seconds until the next look is needed.

        Raises:
            KubeUnavailable: to be retried.
        """
        if workload is None or workload["kind"] != Kind.LEADER_WORKER_SET:
            return None
        known, name = self._messages.setdefault(pair, {}), workload["metadata"]["name"]
        known.pop(name, None)
        if not _lacks_pods(workload, pods):
            return None
        try:
            listed = await self._client.list(f"/api/v1/namespaces/{pair.namespace}/events", fields=_FIELDS)
        except KubeRejected as exc:
            _logger.warning("Events about refused pods cannot be read: %s", exc)
            return None
        since = max(item["metadata"]["creationTimestamp"] for item in (workload, *pods))
        found = [(time, event) for event in listed.items if _is_about(event, name) and (time := _time(event)) >= since]
        if found:
            known[name] = str(max(found, key=lambda each: each[0])[1].get("message") or "no message")
        return LOOK_EVERY_S

    def told(self, pair: ObjectKey, workload: KubeObject | None) -> KubeObject | None:
        """`workload` with the condition that a Deployment with refused pods has."""
        message = None if workload is None else self._messages.get(pair, {}).get(workload["metadata"]["name"])
        if workload is None or message is None:
            return workload
        condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
        status: dict[str, Any] = workload.get("status") or {}
        return {**workload, "status": {**status, "conditions": [*(status.get("conditions") or ()), condition]}}

    def forget(self, pair: ObjectKey) -> None:
        self._messages.pop(pair, None)


def _lacks_pods(workload: KubeObject, pods: Sequence[KubeObject]) -> bool:
    spec = workload["spec"]
    staying = sum("deletionTimestamp" not in pod["metadata"] for pod in pods)
    return bool(staying < (spec.get("replicas") or 0) * (spec["leaderWorkerTemplate"].get("size") or 1))


def _is_about(event: KubeObject, name: str) -> bool:
    """Whether the event is about the set, its leaders' StatefulSet (of the same name), a leader, or its workers'."""
    about, names = event["involvedObject"], re.compile(rf"{re.escape(name)}(-\d+)*")
    return about.get("kind") in _KINDS and names.fullmatch(about.get("name") or "") is not None


def _time(event: KubeObject) -> str:
    """When it happened last, to the second, as RFC 3339 in UTC."""
    latest = event.get("lastTimestamp") or (event.get("series") or {}).get("lastObservedTime") or event.get("eventTime")
    return f"{(latest or event['metadata']['creationTimestamp'])[:19]}Z"
