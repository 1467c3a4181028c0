"""A process of vLLM's Python that has imported vLLM, and forks for each program that a launcher requests.

    python parent.py SOCKET

Each program begins in the state after the imports: no threads, no files, no plugins. vLLM's engine and its workers are
such programs as well, because `multiprocessing` starts them with `sys.executable`, which is the launcher.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from launcher import EXIT_STATUS, LENGTH, REFUSED
from program import Request, become

_MODULES = (
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.cli.main",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)
_V2_MODULES = ("vllm.v1.worker.cpu.model_runner",)
# The imported modules read these variables once. A program with other values needs an interpreter of its own.
# LD_LIBRARY_PATH is not among them: one of the imports sets it, and all libraries are loaded by then.
_READ_AT_IMPORT = (
    *("OMP_", "KMP_", "MKL_", "LD_PRELOAD", "HF_", "TRANSFORMERS_"),
    *("PYTHON", "TRITON_", "VLLM_LOGGING_", "VLLM_CONFIGURE_", "VLLM_USE_V2_"),
)
_SETTLE_S = 2.0
"""The time in which the other processes of a program's group may end by themselves."""
_MAX_DESCRIPTORS = 250


class Parent:
    """Accepts requests and forks. `imported_with`: the environment variables at the time of the imports."""

    def __init__(self, listener: socket.socket, imported_with: Mapping[str, str]) -> None:
        self._imported_with = _read_at_import(imported_with)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, tuple[socket.socket, int]] = {}  # by process id: the launcher, the pidfd
        self._ended: list[tuple[float, int]] = []  # groups to kill, and when

    def serve(self) -> Request:
        """Returns in each forked process, with its request."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while True:
            for key, _ in self._selector.select(timeout=_SETTLE_S if self._ended else None):
                handle: Callable[[], Request | None] = key.data
                if (request := handle()) is not None:
                    return request
            self._kill_groups()

    def _accept(self) -> Request | None:
        launcher, _ = self._listener.accept()
        try:
            request = _receive(launcher)
        except (OSError, EOFError):  # killed meanwhile
            launcher.close()
            return None
        if not self._permits(request):
            _answer(launcher, REFUSED)
            request.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._close()
            launcher.close()
            return request
        request.close()
        pidfd = os.pidfd_open(pid)
        self._running[pid] = launcher, pidfd
        self._selector.register(launcher, selectors.EVENT_READ, lambda: self._pass_signal(pid))
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._end(pid))
        return None

    def _permits(self, request: Request) -> bool:
        """Whether the program may begin after the imports."""
        command = request.command()
        changed = sorted(_read_at_import(request.environment).items() ^ self._imported_with.items())
        permits = not changed and command[:1] in (["-m"], ["-c"])
        print("forks" if permits else f"refuses, for {changed}:", command[:2], flush=True)
        return permits

    def _close(self) -> None:
        """Closes the parent's files in a forked process."""
        self._selector.close()
        self._listener.close()
        for launcher, pidfd in self._running.values():
            launcher.close()
            os.close(pidfd)

    def _pass_signal(self, pid: int) -> None:
        if pid not in self._running:  # it ended in the same round
            return
        launcher, _ = self._running[pid]
        number = b""
        with suppress(OSError):
            number = launcher.recv(1)
        if number:
            os.kill(pid, number[0])
            return
        self._selector.unregister(launcher)  # which was killed
        os.kill(pid, signal.SIGKILL)
        _kill_group(pid)

    def _end(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        launcher, pidfd = self._running.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        with suppress(KeyError):
            self._selector.unregister(launcher)
        _answer(launcher, os.waitstatus_to_exitcode(status))
        self._ended.append((time.monotonic() + _SETTLE_S, pid))

    def _kill_groups(self) -> None:
        now_s = time.monotonic()
        for at_s, group in self._ended:
            if at_s <= now_s:
                _kill_group(group)
        self._ended = [each for each in self._ended if each[0] > now_s]


def _receive(launcher: socket.socket) -> Request:
    """Raises: EOFError if the launcher ended before its request did."""
    header, received, _, _ = socket.recv_fds(launcher, LENGTH.size, _MAX_DESCRIPTORS)
    if len(header) < LENGTH.size:
        raise EOFError
    [size] = LENGTH.unpack(header)
    body = bytearray()
    while len(body) < size:
        part = launcher.recv(size - len(body))
        if not part:
            raise EOFError
        body += part
    return Request(**json.loads(body), received=received)


def _answer(launcher: socket.socket, status: int) -> None:
    with suppress(OSError):
        launcher.sendall(EXIT_STATUS.pack(status))
    launcher.close()


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT)}


def _listen(address: Path) -> socket.socket:
    """At `address`, which exists once connections are accepted."""
    listener = socket.socket(socket.AF_UNIX)
    unnoticed = address.with_suffix(".new")
    listener.bind(str(unnoticed))
    listener.listen(64)
    unnoticed.rename(address)
    return listener


def main(address: Path) -> Request:
    """Returns in each forked process, with its request."""
    imported_with = dict(os.environ)
    for name in (*_MODULES, *(_V2_MODULES if imported_with.get("VLLM_USE_V2_MODEL_RUNNER") == "1" else ())):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy all pages
    return Parent(_listen(address), imported_with).serve()


own_main = sys.modules["__main__"]  # a forked process replaces it: its functions live on
request = main(Path(sys.argv[1]))
del sys.path[0]  # the folder of this file
become(request)
