"""Tasks beside other work: what is logged of their ends."""

from __future__ import annotations

import asyncio

import pytest
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
