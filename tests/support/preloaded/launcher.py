"""The process that represents a program of the preloaded Python: it has the program's signals and exit status.

Run with `-IS`: it starts in milliseconds and imports the standard library only. A process cannot pass SIGKILL on, but
it closes the connection, and then the parent kills the program.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from types import FrameType
from typing import NoReturn

PASSED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
EXIT_STATUS = struct.Struct("!i")
LENGTH = struct.Struct("!Q")
REFUSED = -1000
"""In place of an exit status: this program needs an interpreter of its own."""


def main(address: str, python: str) -> NoReturn:
    """Runs this process's command line in a fork of the parent at `address`; a refused one, with `python`."""
    ignored = [number for number in PASSED_SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    descriptors = _inherited()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    _send_request(connection, descriptors, ignored)

    def pass_on(number: int, frame: FrameType | None) -> None:
        connection.sendall(bytes([number]))

    passed = [number for number in PASSED_SIGNALS if number not in ignored]
    for number in passed:
        signal.signal(number, pass_on)
    status = _exit_status(connection)
    for number in passed:
        signal.signal(number, signal.SIG_DFL)
    if status == REFUSED:
        connection.close()
        os.execv(python, [python, *sys.argv[1:]])
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status % 256)


def _inherited() -> list[int]:
    """The open file descriptors."""
    return [number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number)]


def _is_open(number: int) -> bool:
    """False for the descriptor of the listing itself."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _send_request(connection: socket.socket, descriptors: list[int], ignored: list[int]) -> None:
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "executable": sys.argv[0],
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "descriptors": descriptors,
        "ignored_signals": ignored,
        "umask": umask,
        "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    body = json.dumps(request).encode()
    socket.send_fds(connection, [LENGTH.pack(len(body))], descriptors)
    connection.sendall(body)


def _exit_status(connection: socket.socket) -> int:
    """The program's exit status: a code, or a negative signal."""
    data = b""
    while len(data) < EXIT_STATUS.size:
        part = connection.recv(EXIT_STATUS.size - len(data))
        if not part:
            return -signal.SIGKILL  # the parent ended, and its programs with it
        data += part
    return int(EXIT_STATUS.unpack(data)[0])
