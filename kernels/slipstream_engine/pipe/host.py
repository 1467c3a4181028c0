"""An ASGI application with an event loop in a thread of its own. Requests may come from any thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager

from slipstream_engine.errors import CheckpointError
from slipstream_engine.pipe.call import Application, Call
from slipstream_engine.pipe.messages import Piece, PipedRequest

_END_S = 10.0
_log = logging.getLogger(__name__)
Opened = AbstractAsyncContextManager[Application]


class Host:
    """Runs the application that the context manager `opened` opens and closes.

    `loop` is its event loop. `halt` and `close` end all running responses with the error `HALTED`. `close` cancels the
    calls that still run after `end_s` seconds."""

    def __init__(self, opened: Opened, *, end_s: float = _END_S) -> None:
        self._opened, self._end_s = opened, end_s
        self.loop = asyncio.new_event_loop()
        self._loaded: Future[Application] = Future()
        self._closing = asyncio.Event()
        self._halted = False
        self._calls: dict[str, Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="slipstream-application", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait for the application. Raises `CheckpointError` if it does not load."""
        self._thread.start()
        self._application = self._loaded.result()

    def call(self, name: str, request: PipedRequest, on_piece: Callable[[Piece], None]) -> None:
        """Answer `request`. `on_piece` runs on the event loop's thread."""
        self.loop.call_soon_threadsafe(self._begin, name, request, on_piece)

    def cancel(self, name: str) -> None:
        """Disconnect the client of the call `name`, if it still runs."""
        self.loop.call_soon_threadsafe(self._disconnect, name)

    def halt(self) -> None:
        """Halt all calls, also later ones. Returns at once."""
        self.loop.call_soon_threadsafe(self._halt)

    def close(self) -> None:
        """Halt all calls, close the application, and end the thread."""
        self.halt()
        self.loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _begin(self, name: str, request: PipedRequest, on_piece: Callable[[Piece], None]) -> None:
        call = Call(self._application, request, on_piece)
        if self._halted:
            call.halt()
            return
        self._calls[name] = call
        task = self.loop.create_task(self._answer(name, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, name: str, call: Call) -> None:
        try:
            await call.run()
        except Exception:  # top of a request: its failure must not end the others
            _log.exception("the application failed on a request")
        finally:
            del self._calls[name]

    def _disconnect(self, name: str) -> None:
        if name in self._calls:
            self._calls[name].cancel()

    def _halt(self) -> None:
        self._halted = True
        for call in self._calls.values():
            call.halt()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as exc:  # top of the thread: pass the error to the waiting caller
            if self._loaded.done():
                _log.exception("the application failed while it closed")
            else:
                is_own = isinstance(exc, CheckpointError)
                self._loaded.set_exception(exc if is_own else CheckpointError(f"the application cannot load: {exc!r}"))

    async def _serve(self) -> None:
        async with self._opened as application:
            self._loaded.set_result(application)
            await self._closing.wait()
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=self._end_s)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late, timeout=self._end_s)
