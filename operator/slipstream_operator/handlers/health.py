"""The operator's `/metrics`, `/ready` and `/healthz` over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from slipstream_operator.errors import OperatorError
from slipstream_operator.handlers.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from slipstream_operator.handlers.controller import Controller

STANDBY = "standing by for the leader"
HEARTBEAT_S = 1.0
LONGEST_LAG_S = 30.0


class Health:
    """Whether the operator makes progress. `clock_s` is monotonic."""

    def __init__(self, *, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._beat_s = clock_s()
        self.phase = "starting"
        self.controller: Controller | None = None

    async def beat(self) -> None:
        """Record periodically that the event loop runs, until cancelled."""
        while True:
            self._beat_s = self._clock_s()
            await asyncio.sleep(HEARTBEAT_S)

    def problems(self) -> list[str]:
        """The problems that a restart would solve; empty without any."""
        found = []
        if (lag_s := self._clock_s() - self._beat_s) > LONGEST_LAG_S:
            found.append(f"the event loop has been blocked for {lag_s:.0f} s")
        if self.controller is not None:
            found += [f"{key} has been reconciled for too long" for key in self.controller.stuck()]
            found += [f"the watch of {kind} misses changes" for kind in self.controller.watch_check.dead_watches()]
        return found

    def not_ready(self) -> str | None:
        """The reason why the operator is not ready; None if it is ready. An operator that waits to become the leader is
        ready."""
        if self.phase == STANDBY or (self.controller is not None and self.controller.resync.synced):
            return None
        return self.phase


@asynccontextmanager
async def serve(health: Health, metrics: Metrics, *, host: str, port: int) -> AsyncIterator[None]:
    """`/metrics`, `/ready` and `/healthz` at `host:port` while the block runs."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def ready(_: web.Request) -> web.Response:
        reason = health.not_ready()
        return web.Response(status=200 if reason is None else 503, text=reason or health.phase)

    async def alive(_: web.Request) -> web.Response:
        problems = health.problems()
        return web.Response(status=500 if problems else 200, text="; ".join(problems) or "ok")

    app = web.Application()
    app.add_routes([web.get("/metrics", page), web.get("/ready", ready), web.get("/healthz", alive)])
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as exc:
            raise OperatorError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
        yield
    finally:
        await runner.cleanup()
