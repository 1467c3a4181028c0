"""Waiting for what no event announces. Limits end tests that hang; they do not judge how fast something is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.support.speed import SLOWNESS

PATIENCE_S = 90.0 * SLOWNESS  # the servers of several tests may share the cores
_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1  # a look may be a request to a server that is busy starting

Found = TypeVar("Found")
Ignored = type[Exception] | tuple[type[Exception], ...]


class Waited:
    """Total time that this process has waited, for the report of `--times`."""

    def __init__(self) -> None:
        self.total_s = 0.0


WAITED = Waited()


class _Wait:
    """One wait: its pauses, its limit, and its message when the limit is over."""

    def __init__(self, what: str, within_s: float | None, seen: Callable[[], object] | None, ignoring: Ignored) -> None:
        self._what = what
        self._limit_s = PATIENCE_S if within_s is None else within_s * SLOWNESS
        self._seen = seen
        self.ignoring = ignoring
        self._began_s = time.monotonic()

    def end(self) -> None:
        WAITED.total_s += self._elapsed_s

    def pause_s(self, found: object) -> float:
        """Until the next look. The longer something takes, the rarer the looks: they cost it processor time."""
        if self._elapsed_s < self._limit_s:
            return min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, self._elapsed_s / 20))
        self.end()
        seen = self._seen() if self._seen else found
        raise AssertionError(f"not within {self._limit_s:g} s: {self._what}; seen: {seen}")

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s


def eventually(
    look: Callable[[], Found | None],
    what: str = "what was waited for",
    *,
    within_s: float | None = None,
    seen: Callable[[], object] | None = None,
    ignoring: Ignored = (),
) -> Found:
    """What `look` returns once that is true. Exceptions in `ignoring` count as not true yet.

    Raises:
        AssertionError: it is not true within `within_s` (on the reference machine; `PATIENCE_S` by default). The
            message names `what`, and what `seen` returns instead (the last result of `look` by default).
    """
    wait = _Wait(what, within_s, seen, ignoring)
    while True:
        try:
            last: object = (found := look())
            if found:
                wait.end()
                return found
        except wait.ignoring as exc:
            last = repr(exc)
        time.sleep(wait.pause_s(last))


async def soon(
    look: Callable[[], Awaitable[Found | None] | Found | None],
    what: str = "what was waited for",
    *,
    within_s: float | None = None,
    seen: Callable[[], object] | None = None,
    ignoring: Ignored = (),
) -> Found:
    """`eventually` inside an event loop, which goes on meanwhile; `look` may be a coroutine function."""
    wait = _Wait(what, within_s, seen, ignoring)
    while True:
        try:
            looked = look()
            last: object = (found := await looked if isinstance(looked, Awaitable) else looked)
            if found:
                wait.end()
                return found
        except wait.ignoring as exc:
            last = repr(exc)
        await asyncio.sleep(wait.pause_s(last))
