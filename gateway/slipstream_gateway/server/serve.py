"""Runs the application in uvicorn: sockets, workers, signals and the drain."""

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

from slipstream_gateway.api.monitoring import LIVE, READY
from slipstream_gateway.api.port_router import PortRouter
from slipstream_gateway.app.app import build_app
from slipstream_gateway.server.allocator import give_large_blocks_back
from slipstream_gateway.server.http import SPARE_CONNECTIONS, Bounds, bounded_http, tune
from slipstream_gateway.server.open_files import raise_open_files

_BACKLOG = 2048
_OTHER_FILES = 128  # listeners, logs, Redis, the manifest, worker pipes
_KEEP_ALIVE_S = 75
_WORKER_ANSWERS_S = 60  # uvicorn's 5 s repeatedly kill a worker that still loads on a busy machine
_PROBES = frozenset({LIVE.encode(), READY.encode()})
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PR_SET_PDEATHSIG = 1


def serve(settings: GatewaySettings, *, manifest: bytes | None) -> None:
    """Serves until SIGTERM or SIGINT. Returns when the last stream has ended or the drain limit has passed. A second
    signal of the same kind ends the process at once, even if it hangs. `manifest` is the valid manifest that was read
    at the start; None without a manifest file.

    Raises `CommandError` if the address is not available, or if workers no longer start.
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
    # When uvicorn is done, it raises the signal again for the previous handler. There is none, and the exit is a
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
    """Raises `CommandError` if both listeners have the same port on different addresses, as a free port that was
    requested may turn out to be. The port that accepted a request determines its side."""
    if public.getsockname()[1] == admin.getsockname()[1]:
        raise CommandError(
            f"--port ({_shown(public)}) and --admin-port ({_shown(admin)}) have the same port; "
            "give each a number of its own."
        )


class _Server(uvicorn.Server):
    """uvicorn's server, which drains at the first signal. The kernel handles the second signal of the same kind, so
    that nothing in the process can block it."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        signal.signal(sig, signal.SIG_DFL)
        super().handle_exit(sig, frame)


class _Supervisor(Multiprocess):
    """uvicorn's supervisor with three differences. It distinguishes a requested stop from any other. It refuses
    connections at once when it stops. It does not wait for health responses: uvicorn's blocks until each worker has
    responded, so that a worker that still loads delays signals and the replacement of a dead worker."""

    asked_to_stop = False

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._asked_s: dict[Process, float] = {}
        self._signals: Counter[int] = Counter()
        for number in _STOP_SIGNALS:
            signal.signal(number, self._take_signal)

    def _take_signal(self, number: int, frame: FrameType | None) -> None:
        """Queues the first signal for uvicorn's loop. The second one of the same kind kills the workers that have not
        ended, even while the supervisor waits."""
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
        """Whether the worker runs, and has responded to its last ping or still has time to respond."""
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
        if worker.exitcode == STARTUP_FAILURE:  # a new worker would fail in the same way
            self.should_exit.set()
            return
        started = Process(self.config, self.sockets)
        started.start()
        self.processes[place] = started
        if any(times > 1 for times in self._signals.values()):  # the signal came before this worker was in the list
            started.process.kill()

    def handle_term(self) -> None:
        self.asked_to_stop = True
        super().handle_term()

    def handle_int(self) -> None:
        self.asked_to_stop = True
        super().handle_int()

    def terminate_all(self) -> None:
        super().terminate_all()
        for listener in self.sockets:  # while any process has it open, the kernel accepts connections
            listener.close()


class _AppFactory:
    """Builds the application in a worker. The factory is pickled for the worker, in place of the application."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    def __call__(self) -> PortRouter:
        logging.basicConfig(level=self._settings.log_level.upper(), format=_LOG_FORMAT)
        give_large_blocks_back()
        if self._settings.workers > 1:
            # If the supervisor is killed, the kernel stops its workers.
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            parent = multiprocessing.parent_process()
            if parent is not None and os.getppid() != parent.pid:  # the supervisor died before the line above
                sys.exit(1)
            if self._settings.metrics_folder is not None:
                multiprocessing.current_process().name = _worker_name(self._settings.metrics_folder)
        return build_app(self._settings)


def _worker_name(folder: Path) -> str:
    """`worker-<number>` with the lowest number that no worker has. This process owns the name until it ends, however it
    ends. So the replacement of a dead worker gets the same name, and all that is identified by it, such as the report
    to a cluster."""
    for number in itertools.count():
        descriptor = os.open(folder / f"worker-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return f"worker-{number}"  # the descriptor stays open, and so the lock is kept
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
    """The maximum number of connections of one worker. At this number idle connections are closed, at twice this number
    new ones."""
    return limits.max_in_flight + limits.max_queued + SPARE_CONNECTIONS


def _allow_open_files(limits: Limits) -> None:
    """Raises the number of files that this process and its workers may open to the system's limit, and prints a warning
    if it is too low. Each client connection is one file, and so is each connection to an upstream."""
    allowed, needed = raise_open_files(), 2 * _max_connections(limits) + 2 * limits.max_in_flight + _OTHER_FILES
    if allowed < needed:
        what = f"open files are limited to {allowed}, and a worker may need {needed}"
        options = f"--max-in-flight ({limits.max_in_flight}) and --max-queued ({limits.max_queued})"
        print(f"{what}: raise the hard limit (ulimit -Hn), or lower {options}.", file=sys.stderr, flush=True)


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that an address in use is one clear message and not a dead worker."""
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
    """Handles signals before uvicorn takes over, and after it is done. The next signal of the same kind ends the
    process, even if it hangs."""
    signal.signal(number, signal.SIG_DFL)
