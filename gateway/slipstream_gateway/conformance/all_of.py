"""Waits for several calls of a check."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")


async def all_of(calls: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results of `calls`, which run at the same time. The first error cancels the others and is raised.

    If a call fails at the moment at which the caller is cancelled, `asyncio.gather` raises the call's error, and the
    cancellation is lost. Here the cancellation is raised.
    """
    if not calls:
        return []
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if failed := [task for task in tasks if task.done() and (task.cancelled() or task.exception())]:
            failed[0].result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
