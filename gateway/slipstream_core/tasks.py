"""Tasks that run beside other work, and their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from slipstream_core.errors import SlipstreamError

_log = logging.getLogger(__name__)

_AGAIN_S = 5.0  # longer than a task's own end takes


async def cancel(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancels `tasks` and returns once all have ended; their errors are dropped. A library may lose a cancellation, as
    grpc.aio did where a call ended at that moment, so it is repeated."""
    given = [task for task in tasks if task is not None]
    running = {task for task in given if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_AGAIN_S)
    await asyncio.gather(*given, return_exceptions=True)


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Runs `work` in a task while the context is open. An unforeseen error of `work` is logged; a `SlipstreamError` is
    for the caller to find in the task."""
    task = asyncio.create_task(work)
    task.add_done_callback(_log_failure)
    try:
        yield task
    finally:
        await cancel(task)


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, SlipstreamError):
        _log.error("%s ended with an unforeseen error", task.get_coro(), exc_info=error)
