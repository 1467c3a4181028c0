"""Tasks beside other work: what is logged of their ends."""

from __future__ import annotations

import asyncio

import pytest
from slipstream_core import tasks
from slipstream_core.errors import UpstreamFailed
from slipstream_core.tasks import beside


@pytest.mark.parametrize(
    ("error", "logged"),
    [(KeyError("a bug"), ["KeyError"]), (UpstreamFailed("the caller finds it in the task"), []), (None, [])],
)
async def test_unforeseen_errors_are_logged_while_the_context_is_open(
    error: Exception | None, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        if error is not None:
            raise error
        await asyncio.Event().wait()

    async with beside(work()) as task:
        await asyncio.wait([task], timeout=0.05)
        await asyncio.sleep(0)
        found = [record.exc_info[0].__name__ for record in caplog.records if record.exc_info and record.exc_info[0]]
        assert found == logged
    assert task.done()


async def test_a_cancellation_that_a_library_loses_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_AGAIN_S", 0.01)
    lost: list[asyncio.CancelledError] = []

    async def work() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as exc:
                if lost:
                    raise
                lost.append(exc)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await tasks.cancel(task, None)
    assert task.cancelled()
    assert lost
