"""Notices that Triton is shutting down while a model has running answers.

Triton calls a model's `finalize` only after its last answer has ended. Where answers run longer than
`--exit-timeout-secs` after SIGTERM, Triton exits without it, and its clients see a crash. At SIGTERM Triton stops
listening for HTTP, which other processes can see. Without that service, nothing is noticed.
"""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

_HTTP_ADDRESS = "0.0.0.0"  # nosec B104 # Triton's defaults
_HTTP_PORT, _EXIT_TIMEOUT_S = "8000", "30"
_LOOK_S = 0.5
_CONNECT_TIMEOUT_S = 1.0
_HALT_BEFORE_S = 3.0
"""Triton takes one or two seconds to unload a model."""


class ShutdownWatch:
    """Watches the Triton that is the process `triton`."""

    def __init__(self, triton: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `OSError` if there is no such process."""
        command = Path("/proc", str(triton), "cmdline").read_bytes().decode(errors="replace")
        host = _option(command, "--http-address", _HTTP_ADDRESS).removeprefix("ipv6:")
        self._http = host, int(_option(command, "--http-port", _HTTP_PORT))
        self._halt_after_s = int(_option(command, "--exit-timeout-secs", _EXIT_TIMEOUT_S)) - _HALT_BEFORE_S
        self._clock = clock
        self._look_at_s = clock() if _option(command, "--allow-http", "true").lower() in ("true", "1") else math.inf
        self._listened = False
        self._began_s: float | None = None

    @classmethod
    def of_parent(cls) -> ShutdownWatch:
        """Watches the Triton that started this process."""
        return cls(os.getppid())

    @property
    def has_begun(self) -> bool:
        """Whether Triton has listened for HTTP, which it does once all models are loaded."""
        return self._listened

    def is_due(self) -> bool:
        """Whether Triton is about to exit without waiting for running answers. Cheap: it looks twice a second."""
        now_s = self._clock()
        if now_s >= self._look_at_s:
            self._look(now_s)
        return self._began_s is not None and now_s >= self._began_s + self._halt_after_s

    def _look(self, now_s: float) -> None:
        listens = self._listens()
        self._listened = self._listened or listens
        if not self._listened:  # Triton loads its models. It may be stopped soon after that
            return
        self._look_at_s = now_s + _LOOK_S
        if listens:
            self._began_s = None
        elif self._began_s is None:
            self._began_s = now_s

    def _listens(self) -> bool:
        try:
            socket.create_connection(self._http, _CONNECT_TIMEOUT_S).close()
        except ConnectionRefusedError:
            return False
        except OSError:  # too busy to say
            return self._listened
        return True


def _option(command: str, name: str, default: str) -> str:
    """The last value of an option in a command line of arguments that end with NUL."""
    given = re.findall(rf"\0{name}[=\0]([^\0]+)(?=\0)", command)
    return str(given[-1]) if given else default
