"""Waiting for what no event announces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 90.0  # the servers of several tests may share the cores

Found = TypeVar("Found")


class Waited:
    """How long this process has waited so far, for the report of `--times`."""

    total_s = 0.0


def eventually(
    look: Callable[[], Found | None], what: str = "what was waited for", *, within_s: float = PATIENCE_S
) -> Found:
    """What `look` returns once that is true. Fails the test, with `what`, where it is not true in time."""
    began_s = time.monotonic()
    while not (found := look()):
        assert time.monotonic() < began_s + within_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.01)
    Waited.total_s += time.monotonic() - began_s
    return found


async def soon(
    look: Callable[[], Found | None], what: str = "what was waited for", *, within_s: float = PATIENCE_S
) -> Found:
    """`eventually` inside an event loop, which goes on meanwhile."""
    began_s = time.monotonic()
    while not (found := look()):
        assert time.monotonic() < began_s + within_s, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.005)
    Waited.total_s += time.monotonic() - began_s
    return found
