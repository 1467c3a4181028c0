"""Server-sent events for all viewers at the cost of one: a producer that runs while there are viewers.

A viewer first gets all sections (`event: snapshot`), then changes (`event: change`), about every second. A viewer that
is too slow skips to the newest snapshot; nothing is buffered. (WHATWG HTML, 9.2.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

EVERY_S = 1.0
HEARTBEAT_S = 10.0
_log = logging.getLogger(__name__)
_HEARTBEAT = b": still here\n\n"
_RETRY = b"retry: 1000\n\n"


class Feed:
    """`sections` returns the console's sections. Viewers iterate over `events`."""

    def __init__(self, sections: Callable[[], Awaitable[Mapping[str, Any]]], *, every_s: float = EVERY_S) -> None:
        self._sections = sections
        self._every_s = every_s
        self._encoded: dict[str, bytes] = {}
        self._number = 0
        self._whole = b""
        self._change = b""
        self._news = asyncio.Event()
        self._viewers = 0
        self._producer: asyncio.Task[None] | None = None

    @property
    def viewers(self) -> int:
        return self._viewers

    async def whole(self) -> bytes:
        """All sections as one JSON object."""
        return _object({name: msgspec.json.encode(value) for name, value in (await self._sections()).items()})

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The endless events for one viewer."""
        self._viewers += 1
        try:
            if self._producer is None or self._producer.done():
                self._producer = asyncio.create_task(self._produce())
            yield _RETRY
            seen = 0
            while True:
                if seen != self._number:
                    behind = self._number - seen
                    seen = self._number
                    yield self._change if behind == 1 and seen > 1 else self._whole
                elif not await self._wait():
                    yield _HEARTBEAT
        finally:
            self._viewers -= 1
            if not self._viewers and self._producer is not None:
                self._producer.cancel()
                self._producer = None
                self._number, self._encoded = 0, {}

    async def _wait(self) -> bool:
        """Waits for a change; returns whether one came before the next heartbeat is due."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def _produce(self) -> None:
        while True:
            try:
                self._publish(await self._sections())
            except Exception:  # top of the task: a failing figure must not stop the others
                _log.exception("cannot compute the console's figures; retrying")
            await asyncio.sleep(self._every_s)

    def _publish(self, sections: Mapping[str, Any]) -> None:
        encoded = {name: msgspec.json.encode(value) for name, value in sections.items()}
        changed = {name: data for name, data in encoded.items() if self._encoded.get(name) != data}
        if not changed:
            return
        self._encoded = encoded
        self._number += 1
        self._whole = _event("snapshot", self._number, encoded)
        self._change = _event("change", self._number, changed)
        news, self._news = self._news, asyncio.Event()
        news.set()


def _event(kind: str, number: int, sections: Mapping[str, bytes]) -> bytes:
    """JSON has no line breaks, so one `data` line holds it."""
    return b"event: %s\nid: %d\ndata: %s\n\n" % (kind.encode(), number, _object(sections))


def _object(sections: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), data) for name, data in sections.items()) + b"}"
