"""Liveness of a server, with one probe shared by all concurrent callers."""

from __future__ import annotations

import asyncio
import time

from slipstream_core.errors import SlipstreamError

from slipstream_gateway.upstreams.base import Upstream

_FRESH_S = 0.5


class Liveness:
    """`is_silent`: the last probe got no response."""

    def __init__(self, upstream: Upstream) -> None:
        self.is_silent = False
        self._upstream = upstream
        self._probe_task: asyncio.Task[bool] | None = None
        self._probed_s = 0.0

    async def probe(self, within_s: float) -> bool:
        """Whether the server responds to a probe `within_s`. Concurrent callers share one probe."""
        now_s = time.monotonic()
        if self._probe_task is None or (self._probe_task.done() and now_s - self._probed_s > _FRESH_S):
            self._probed_s = now_s
            self._probe_task = asyncio.create_task(self._run_probe(within_s))
        return await asyncio.shield(self._probe_task)

    async def _run_probe(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._upstream.probe()
        except (SlipstreamError, TimeoutError):
            self.is_silent = True
        else:
            self.is_silent = False
        return not self.is_silent
