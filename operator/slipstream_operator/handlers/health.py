"""The operator's `/metrics`, `/ready` and `/healthz` over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web
from slipstream_core.listeners import authority, bound_socket

from slipstream_operator.errors import OperatorError
from slipstream_operator.handlers.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from slipstream_operator.handlers.controller import Controller

STANDBY = "standing by for the leader"


class Health:
    """Whether the operator makes progress. A blocked event loop answers no probe."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.controller: Controller | None = None

    def problems(self) -> list[str]:
        """The problems that a restart would solve; empty without any."""
        if self.controller is None:
            return []
        stuck, dead = self.controller.stuck(), self.controller.watch_check.dead_watches()
        return [
            *(f"{key} has been reconciled for too long" for key in stuck),
            *(f"the watch of {kind} misses changes" for kind in dead),
        ]

    def not_ready(self) -> str | None:
        """The reason why the operator is not ready; None if it is ready. An operator that waits to become the leader is
        ready."""
        if self.phase == STANDBY or (self.controller is not None and self.controller.resync.synced):
            return None
        return self.phase


@asynccontextmanager
async def serve(health: Health, metrics: Metrics | None, *, host: str, port: int) -> AsyncIterator[None]:
    """`/healthz` at `host:port` while the block runs, and with `metrics` also `/metrics` and `/ready`."""

    async def page(_: web.Request) -> web.Response:
        assert metrics is not None
        return web.Response(body=metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def ready(_: web.Request) -> web.Response:
        reason = health.not_ready()
        return web.Response(status=200 if reason is None else 503, text=reason or health.phase)

    async def alive(_: web.Request) -> web.Response:
        problems = health.problems()
        return web.Response(status=500 if problems else 200, text="; ".join(problems) or "ok")

    app = web.Application()
    app.add_routes([web.get("/healthz", alive)])
    if metrics is not None:
        app.add_routes([web.get("/metrics", page), web.get("/ready", ready)])
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.SockSite(runner, bound_socket(host, port)).start()
        except OSError as exc:
            raise OperatorError(f"cannot listen on {authority(host, port)}: {exc.strerror or exc}") from exc
        yield
    finally:
        await runner.cleanup()
