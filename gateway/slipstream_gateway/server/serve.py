"""uvicorn around the application: sockets, workers, signals and the drain."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import logging
import math
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn
from slipstream_core.errors import CommandError
from slipstream_core.settings import GatewaySettings, Limits
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from slipstream_gateway.api.health import LIVE, READY
from slipstream_gateway.api.port_router import PortRouter
from slipstream_gateway.app.app import build_app
from slipstream_gateway.server.allocator import give_large_blocks_back
from slipstream_gateway.server.http import SPARE_CONNECTIONS, Bounds, bounded_http, tune
from slipstream_gateway.server.open_files import raise_open_files

_BACKLOG = 2048
_OTHER_FILES = 128  # listeners, logs, Redis, the manifest, worker pipes
_KEEP_ALIVE_S = 75
_WORKER_ANSWERS_S = 60  # uvicorn's 5 s kill a worker that is still loading on a busy machine, again and again
_PROBES = frozenset({LIVE.encode(), READY.encode()})
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PR_SET_PDEATHSIG = 1


def serve(settings: GatewaySettings, *, manifest: bytes | None) -> None:
    """Serves until SIGTERM or SIGINT; returns when the last stream is over or the drain limit has passed. A second
    signal of the same kind ends the process at once, whatever hangs. `manifest` is the good one that was read at the
    start; None where there is no manifest file.

    Raises `CommandError` where the address cannot be had, or where workers no longer start.
    """
    listeners = [_listen(settings.host, settings.port)]
    print(f"slipstream gateway on http://{_shown(listeners[0])}", file=sys.stderr, flush=True)
    if settings.admin.port is not None:
        listeners.append(_listen(settings.admin.host, settings.admin.port))
        check_apart(*listeners)
        print(f"admin paths on http://{_shown(listeners[1])}", file=sys.stderr, flush=True)
        bound = msgspec.structs.replace(settings.admin, port=listeners[1].getsockname()[1])
        settings = msgspec.structs.replace(settings, admin=bound)
    _allow_open_files(settings.limits)
    # uvicorn raises the signal once more when it is done, for whoever handled it before: nobody, and that is a
    # success.
    for number in _STOP_SIGNALS:
        signal.signal(number, _ignore_once)
    if settings.workers == 1:
        _Server(_config(settings)).run(sockets=listeners)
        return
    folder = Path(tempfile.mkdtemp(prefix="slipstream-"))
    try:
        shared = msgspec.structs.replace(settings, metrics_folder=folder)
        if manifest is not None:
            last_good = folder / "last-good.yaml"
            last_good.write_bytes(manifest)
            shared = msgspec.structs.replace(shared, last_good=last_good)
        supervisor = _Supervisor(_config(shared), sockets=listeners)
        supervisor.run()
        if not supervisor.asked_to_stop:
            raise CommandError("a worker failed to start, so the gateway has stopped; its log says why.")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_apart(public: socket.socket, admin: socket.socket) -> None:
    """Raises `CommandError` where both listeners have the same port on different addresses, as a free one that was
    asked for may turn out: a request's side is told by the port that it came in by."""
    if public.getsockname()[1] == admin.getsockname()[1]:
        raise CommandError(
            f"--port ({_shown(public)}) and --admin-port ({_shown(admin)}) have the same port; "
            "give each a number of its own."
        )


class _Server(uvicorn.Server):
    """uvicorn's, which drains at the first signal. The kernel acts on the second one of the same kind, so that nothing
    in the process can be in its way."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        signal.signal(sig, signal.SIG_DFL)
        super().handle_exit(sig, frame)


class _Supervisor(Multiprocess):
    """uvicorn's, which tells a stop that was asked for from one that was not, and refuses connections at once. It waits
    for no worker's word: uvicorn's stands still until each has answered, and one that is still loading would keep it
    from signals and from another's death."""

    asked_to_stop = False

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._asked_s: dict[Process, float] = {}
        self._signals: Counter[int] = Counter()
        for number in _STOP_SIGNALS:
            signal.signal(number, self._take_signal)

    def _take_signal(self, number: int, frame: FrameType | None) -> None:
        """The first one is for uvicorn's loop; the second one of the same kind ends workers that do not end by
        themselves, whatever the supervisor waits for."""
        self.signal_queue.append(number)
        self._signals[number] += 1
        if self._signals[number] > 1:
            for worker in self.processes:
                worker.process.kill()

    def keep_subprocess_alive(self) -> None:
        for place, worker in enumerate(self.processes):
            if not self.should_exit.is_set() and not self._answers(worker):
                self._replace(place, worker)

    def _answers(self, worker: Process) -> bool:
        """Whether it runs, and has answered what it was last asked or still has time to."""
        if not worker.process.is_alive():
            return False
        try:
            while worker.parent_conn.poll():
                worker.parent_conn.recv()
                self._asked_s.pop(worker, None)
            if worker not in self._asked_s:
                worker.parent_conn.send(b"ping")
                self._asked_s[worker] = time.monotonic()
        except (OSError, EOFError):
            return False
        return time.monotonic() - self._asked_s[worker] < self.config.timeout_worker_healthcheck

    def _replace(self, place: int, worker: Process) -> None:
        self._asked_s.pop(worker, None)
        worker.kill()
        worker.join()
        if worker.exitcode == STARTUP_FAILURE:  # it would fail the same way again and again
            self.should_exit.set()
            return
        started = Process(self.config, self.sockets)
        started.start()
        self.processes[place] = started
        if any(times > 1 for times in self._signals.values()):  # it came before this was one of the workers
            started.process.kill()

    def handle_term(self) -> None:
        self.asked_to_stop = True
        super().handle_term()

    def handle_int(self) -> None:
        self.asked_to_stop = True
        super().handle_int()

    def terminate_all(self) -> None:
        super().terminate_all()
        for listener in self.sockets:  # while one process has it open, the kernel goes on accepting
            listener.close()


class _AppFactory:
    """Builds the application in a worker; it crosses the process border instead of the application."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    def __call__(self) -> PortRouter:
        logging.basicConfig(level=self._settings.log_level.upper(), format=_LOG_FORMAT)
        give_large_blocks_back()
        if self._settings.workers > 1:
            # A supervisor that is killed takes its workers along.
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            parent = multiprocessing.parent_process()
            if parent is not None and os.getppid() != parent.pid:  # it died before the line above took effect
                sys.exit(1)
            if self._settings.metrics_folder is not None:
                multiprocessing.current_process().name = _worker_name(self._settings.metrics_folder)
        return build_app(self._settings)


def _worker_name(folder: Path) -> str:
    """`worker-<number>`, the lowest that no worker has: this process is its owner until it ends, however it ends. So
    who takes a dead worker's place takes its name, and what goes by it, such as the report to a cluster."""
    for number in itertools.count():
        descriptor = os.open(folder / f"worker-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return f"worker-{number}"  # the lock stays, and so does the descriptor
    raise AssertionError("numbers do not end")


def _config(settings: GatewaySettings) -> uvicorn.Config:
    return uvicorn.Config(
        _AppFactory(settings),
        factory=True,
        workers=settings.workers,
        loop="uvloop",
        http=bounded_http(Bounds(bodies_bytes=settings.limits.max_bodies_bytes, probes=_PROBES)),
        limit_concurrency=_max_connections(settings.limits),
        ws="none",
        lifespan="on",
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_worker_healthcheck=_WORKER_ANSWERS_S,
        timeout_graceful_shutdown=max(1, math.ceil(settings.limits.drain_s)),
    )


def _max_connections(limits: Limits) -> int:
    """Of one worker. At this number idle connections are closed, at twice this number new ones."""
    return limits.max_in_flight + limits.max_queued + SPARE_CONNECTIONS


def _allow_open_files(limits: Limits) -> None:
    """Lets this process and its workers open as many files as the system allows, and says where these are too few: a
    client's connection is one, and so is that to an upstream."""
    allowed, needed = raise_open_files(), 2 * _max_connections(limits) + 2 * limits.max_in_flight + _OTHER_FILES
    if allowed < needed:
        what = f"open files are limited to {allowed}, and a worker may need {needed}"
        options = f"--max-in-flight ({limits.max_in_flight}) and --max-queued ({limits.max_queued})"
        print(f"{what}: raise the hard limit (ulimit -Hn), or lower {options}.", file=sys.stderr, flush=True)


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that an address in use is one clear line and not a dead worker."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        tune(listener)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as exc:
        listener.close()
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise CommandError(f"cannot listen on {host}:{port}: {reason}.") from exc
    listener.set_inheritable(True)
    return listener


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ignore_once(number: int, frame: FrameType | None) -> None:
    """Until uvicorn takes over, and after it is done. The next one of the same kind ends the process, so that nothing
    that hangs keeps it from ending."""
    signal.signal(number, signal.SIG_DFL)
