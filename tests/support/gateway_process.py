"""`slipstream gateway` as a process, and connections to it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psutil

from tests.support.command import SLIPSTREAM
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import consecutive_ports


def wait_live(
    child: subprocess.Popen[Any],
    *urls: str,
    get: Callable[..., httpx.Response] = httpx.get,
    status: int = 200,
    log: Path | None = None,
) -> None:
    """Waits until the program `child` answers each of `urls` with `status`. A failure shows its `log`."""
    seen = log.read_text if log is not None else None

    def is_live() -> bool:
        assert child.poll() is None, seen() if seen else child.stderr and child.stderr.read()
        return all(get(url, timeout=PATIENCE_S).status_code == status for url in urls)

    eventually(is_live, f"{status} at {', '.join(urls)}", seen=seen, ignoring=httpx.TransportError)


class Process:
    """A running `slipstream gateway`. `admin_urls` has the addresses of the admin paths: of each worker if there are
    several, else of the public port."""

    def __init__(
        self,
        manifest: Path | None,
        port: int,
        *options: str,
        workers: int = 1,
        open_files: tuple[int, int] | None = None,
        log: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        program: Sequence[str] = SLIPSTREAM,
    ) -> None:
        """`manifest`: None for the objects of a cluster. `open_files`: its soft and its hard limit, not those of this
        process. Its output goes to the file `log`; without one, its log to `child.stderr`. `program`: the command
        `slipstream` of another installation."""
        source = ["--source", "kubernetes"] if manifest is None else ["-f", str(manifest)]
        command = [*program, "gateway", *source]
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.admin_urls = [self.url]
        if workers > 1:
            ports = consecutive_ports(workers)
            self.admin_urls = [f"http://127.0.0.1:{admin}" for admin in ports]
            command += ["--workers", str(workers), "--admin-port", str(ports[0])]
        self._log = log
        if open_files is not None:
            limits = "ulimit -S -n {} && ulimit -H -n {}".format(*open_files)
            command = ["sh", "-c", f'{limits} && exec "$@"', "sh", *command]
        with contextlib.ExitStack() as files:
            output = None if log is None else files.enter_context(log.open("w"))
            self.child = subprocess.Popen(
                [*command, "--port", str(port), *options],
                stdout=output,
                stderr=subprocess.PIPE if output is None else output,
                text=True,
                env={**os.environ, **environment},
            )

    def stop(self) -> None:
        """End it as a service manager does."""
        self.child.terminate()
        self.child.communicate(timeout=PATIENCE_S)

    def wait_live(self, path: str = "/health/live") -> None:
        """Waits until all of its workers answer."""
        wait_live(self.child, *(f"{url}{path}" for url in [self.url, *self.admin_urls]), log=self._log)

    def log(self) -> str:
        """What its file of output has so far."""
        assert self._log is not None
        return self._log.read_text()


def is_refused(process: Process) -> bool:
    """Whether new connections are refused."""
    try:
        socket.create_connection(("127.0.0.1", process.port), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # the port closed within the handshake; the next attempt shows it
    return False


def stream(process: Process, body: dict[str, Any]) -> socket.socket:
    raw = json.dumps({**body, "stream": True}).encode()
    connection = socket.create_connection(("127.0.0.1", process.port), timeout=PATIENCE_S)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    return connection


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def workers_of(process: Process) -> list[psutil.Process]:
    """Those that run, without multiprocessing's own helper."""
    found = []
    for child in psutil.Process(process.child.pid).children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found
