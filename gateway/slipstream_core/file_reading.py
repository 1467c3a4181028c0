"""Reading files that somebody else writes: regular files only, up to a size, and with a deadline, off the event loop,
because a network file system may hang."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def read_regular(path: Path, *, max_bytes: int) -> bytes:
    """The first `max_bytes` of the file at `path`, or of the one that a symbolic link leads to.

    Raises `OSError`, whose `strerror` says what else stands there: opening a FIFO waits for a writer, and opening a
    device may have effects. A file that is replaced between the look and the opening is caught by the second look, or
    by the caller's deadline (`FileThread`).
    """
    _check(path.stat().st_mode, path)
    with open(os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        _check(os.fstat(file.fileno()).st_mode, path)
        return file.read(max_bytes)


def _check(mode: int, path: Path) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, a regular file is needed", str(path))


CALL_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 0.01  # poll interval for the return of a hung call
T = TypeVar("T")


class _Work(NamedTuple):
    call: Callable[[], Any]
    result: Future[Any]
    done: threading.Event


class FileThread:
    """Makes one call at a time, in its own daemon thread: a hung call delays neither the event loop nor the end of the
    process. Until it returns, later calls only wait.

    Calls that exceed their deadline raise `TimeoutError`; their late results are dropped. The thread starts with the
    first call, and ends when the object is no longer in use.
    """

    def __init__(self, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._last: threading.Event | None = None  # whether the last call is done, without its result
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        weakref.finalize(self, self._queue.put, None)

    def run(self, call: Callable[[], T]) -> T:
        """The result or exception of `call`; blocks the calling thread."""
        if self._last is not None and not self._last.wait(self._timeout_s):
            raise self._timeout()
        result = self._start(call)
        try:
            if wait([result], self._timeout_s).not_done:
                raise self._timeout()
            return result.result()
        finally:
            del (
                self,
                result,
            )  # break the reference cycle error–frame, or the thread would live until the next garbage collection

    async def arun(self, call: Callable[[], T]) -> T:
        """The result or exception of `call`, without blocking the event loop."""
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
        result.set_running_or_notify_cancel()  # from here on it cannot be cancelled: a running call cannot be stopped
        done = threading.Event()
        if self._last is None:
            threading.Thread(target=_work, args=(self._queue,), name="files", daemon=True).start()
        self._last = done
        self._queue.put(_Work(call, result, done))
        return result

    def _timeout(self) -> TimeoutError:
        return TimeoutError(errno.ETIMEDOUT, f"the file system did not answer within {self._timeout_s:g} s")


def _work(queue: SimpleQueue[_Work | None]) -> None:
    """Holds no reference to the `FileThread`, nor to its last call, so that both can be freed."""
    while (work := queue.get()) is not None:
        try:
            value = work.call()
        except BaseException as exc:  # top of the thread: the exception goes to the waiting caller
            work.done.set()
            work.result.set_exception(exc)
        else:
            work.done.set()
            work.result.set_result(value)
            del value
        del work
