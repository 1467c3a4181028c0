"""Notes as Kubernetes Events (`v1`), for `kubectl describe` and `kubectl get events`."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeConflict, KubeError

from slipstream_operator.cluster.resources import FIELD_MANAGER
from slipstream_operator.status.conditions import rfc3339
from slipstream_operator.types import KubeObject, Note

QUIET_S = 60.0

_QUEUED = 1000
_REMEMBERED = 10_000
_LONGEST_MESSAGE = 1024  # the API server's limit

_logger = logging.getLogger(__name__)


class EventPoster:
    """Posts Events in the background. An Event that cannot be posted is logged and dropped, and delays no reconcile.

    The same message about the same object is not repeated within `QUIET_S`. `clock_s` is monotonic.
    """

    def __init__(
        self, client: KubeClient, *, clock_s: Callable[[], float], on_note: Callable[[str, str, str], None]
    ) -> None:
        """`on_note` is called for every posted note with the object's kind, the note's type and reason."""
        self._client, self._clock_s, self._on_note = client, clock_s, on_note
        self._queue: asyncio.Queue[KubeObject] = asyncio.Queue(_QUEUED)
        self._posted_at: OrderedDict[tuple[str, Note], float] = OrderedDict()

    def post(self, about: KubeObject, notes: tuple[Note, ...]) -> None:
        for note in notes:
            if self._is_repeated(about["metadata"]["uid"], note):
                continue
            self._on_note(about["kind"], note.type, note.reason)
            try:
                self._queue.put_nowait(_event(about, note, datetime.now(UTC)))
            except asyncio.QueueFull:
                _logger.warning("too many events at once, dropped: %s: %s", note.reason, note.message)

    async def run(self) -> None:
        """Post queued Events until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                await self._send(event)
            except KubeError as exc:
                _logger.warning("an event could not be posted: %s: %s (%s)", event["reason"], event["message"], exc)

    async def _send(self, event: KubeObject) -> None:
        collection = f"/api/v1/namespaces/{event['metadata']['namespace']}/events"
        try:
            await self._client.create(collection, event)
        except KubeConflict:  # the same Event was posted before and still exists
            path = f"{collection}/{event['metadata']['name']}"
            await self._client.merge(path, {"lastTimestamp": event["lastTimestamp"]})

    def _is_repeated(self, uid: str, note: Note) -> bool:
        now_s, said = self._clock_s(), (uid, note)
        if now_s - self._posted_at.get(said, now_s - QUIET_S) < QUIET_S:
            return True
        self._posted_at[said] = now_s
        self._posted_at.move_to_end(said)
        if len(self._posted_at) > _REMEMBERED:
            self._posted_at.popitem(last=False)
        return False


def _event(about: KubeObject, note: Note, now: datetime) -> dict[str, Any]:
    """The Event; its name is a hash of its content, so that it is not created twice."""
    metadata = about["metadata"]
    said = "\n".join((metadata["uid"], note.type, note.reason, note.message))
    stamp = rfc3339(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{hashlib.sha256(said.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": note.type,
        "reason": note.reason,
        "message": note.message[:_LONGEST_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
