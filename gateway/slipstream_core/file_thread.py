"""Calls of a file system that may hang, such as one of a network: with a deadline, away from the event loop."""

from __future__ import annotations

import asyncio
import errno
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

CALL_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 0.01  # whether a call that hangs has returned
T = TypeVar("T")


class _Work(NamedTuple):
    call: Callable[[], Any]
    result: Future[Any]
    done: threading.Event


class FileThread:
    """Makes one call at a time, in a daemon thread of its own: a call that hangs delays neither the event loop nor the
    end of the process. Until a hung call returns, later ones only wait for it.

    Calls that pass their deadline raise `TimeoutError`; what they still return is dropped. The thread starts with the
    first call, and ends when the object is no longer in use.
    """

    def __init__(self, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._last: threading.Event | None = None  # that the last call is done; not what it returned
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        weakref.finalize(self, self._queue.put, None)

    def run(self, call: Callable[[], T]) -> T:
        """What `call` returns or raises; the calling thread waits for it."""
        if self._last is not None and not self._last.wait(self._timeout_s):
            raise self._timeout()
        result = self._start(call)
        try:
            if wait([result], self._timeout_s).not_done:
                raise self._timeout()
            return result.result()
        finally:
            del self, result  # an error knows this frame: without this the thread would stay until a collection

    async def arun(self, call: Callable[[], T]) -> T:
        """What `call` returns or raises; the event loop goes on meanwhile."""
        try:
            async with asyncio.timeout(self._timeout_s) as deadline:
                while self._last is not None and not self._last.is_set():  # noqa: ASYNC110 - set by a thread
                    await asyncio.sleep(_LOOK_EVERY_S)
                return await asyncio.wrap_future(self._start(call))
        except TimeoutError:
            if deadline.expired():
                raise self._timeout() from None
            raise

    def _start(self, call: Callable[[], T]) -> Future[T]:
        result: Future[T] = Future()
        result.set_running_or_notify_cancel()  # from here on nobody can cancel it: a call cannot be stopped
        done = threading.Event()
        if self._last is None:
            threading.Thread(target=_work, args=(self._queue,), name="files", daemon=True).start()
        self._last = done
        self._queue.put(_Work(call, result, done))
        return result

    def _timeout(self) -> TimeoutError:
        return TimeoutError(errno.ETIMEDOUT, f"the file system did not answer within {self._timeout_s:g} s")


def _work(queue: SimpleQueue[_Work | None]) -> None:
    """Holds no reference to the `FileThread`, nor to what it did last, so that both can go away."""
    while (work := queue.get()) is not None:
        try:
            value = work.call()
        except BaseException as exc:  # the top of a thread: whoever waits gets it
            work.done.set()
            work.result.set_exception(exc)
        else:
            work.done.set()
            work.result.set_result(value)
            del value
        del work
