"""Gateways in worker processes that share a listening socket.

uvicorn's supervisor keeps the listeners open while its workers drain, so that the kernel accepts connections that no
worker serves. It waits for the workers one by one, so that a hanging one delays signals and the replacement of others.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType

import uvicorn
from slipstream_core.errors import CommandError
from uvicorn.config import STARTUP_FAILURE

from slipstream_gateway.server.leaving import Leaving, LeavingServer

HANG_S = 60.0
_TICK_S = 0.5
_STDERR = 2
_log = logging.getLogger(__name__)


def supervise(starts: Sequence[Callable[[], None]], listeners: Sequence[socket.socket]) -> None:
    """Runs each of `starts` in a process, `worker-0` and so on, until SIGTERM or SIGINT. Then the workers leave and
    drain; they refuse connections when they drain. A second signal of the same kind kills them.

    A worker that ends is replaced. The replacement has the same name, and so has all that is identified by it, such as
    the report to a cluster. Raises `CommandError` if a worker fails to start: a new one would fail, too.
    """
    work = {f"worker-{number}": start for number, start in enumerate(starts)}
    workers: dict[str, SpawnProcess | None] = dict.fromkeys(work)
    signals: Counter[int] = Counter()

    def started() -> list[SpawnProcess]:
        return [worker for worker in workers.values() if worker is not None]

    def kill_at_second_signal() -> None:
        if max(signals.values(), default=0) > 1:
            for worker in started():
                worker.kill()

    def stop(number: int, frame: FrameType | None) -> None:
        signals[number] += 1
        kill_at_second_signal()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        while not signals:
            for name, worker in workers.items():
                if not signals and (worker is None or not worker.is_alive()):
                    workers[name] = _replacement(name, worker, work[name])
            wait([worker.sentinel for worker in started()], _TICK_S)
    finally:
        for listener in listeners:  # while any process has it open, the kernel accepts connections
            listener.close()
        for ending in started():
            ending.terminate()
        kill_at_second_signal()  # of a worker that was not in the list when the signal came
        for ending in started():
            ending.join()


def _replacement(name: str, ended: SpawnProcess | None, start: Callable[[], None]) -> SpawnProcess:
    if ended is not None:
        if ended.exitcode == STARTUP_FAILURE:
            raise CommandError("a worker failed to start, so the gateway has stopped; its log says why.")
        _log.warning("%s ended with code %s and is replaced", name, ended.exitcode)
    worker = multiprocessing.get_context("spawn").Process(target=start, name=name)
    worker.start()
    return worker


class WorkerServer(LeavingServer):
    """The server of a worker. It leaves at SIGTERM, and drains at SIGINT, or if the supervisor has died. If its event
    loop is blocked for `hang_s`, the process ends with the stacks of its threads on stderr, and the supervisor replaces
    it."""

    def __init__(self, config: uvicorn.Config, leaving: Leaving, *, hang_s: float = HANG_S) -> None:
        super().__init__(config, leaving)
        self._hang_s = hang_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A second signal changes nothing: a service manager may send one to each process.
        if sig == signal.SIGTERM:
            self.leaving.begin()
        else:
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            faulthandler.dump_traceback_later(self._hang_s, exit=True, file=_STDERR)
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid != os.getppid():
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        faulthandler.cancel_dump_traceback_later()  # a drain may take longer
        await super().shutdown(sockets)
