"""A server as a child process of `slipstream up`: watched until ready, started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from slipstream_core.errors import CommandError

from slipstream_tools.up.processes import Child

if TYPE_CHECKING:
    import httpx

_POLL_S = 0.1
_GET_TIMEOUT_S = 2.0
_QUICK_TIMEOUT_S = 1.0  # Ctrl-C waits for such a request


class Server:
    """A running server. A subclass sets `child` as the last step of its start: an interrupt between the process's start
    and the end of `__init__` would leave the process."""

    child: Child

    def __init__(self, *, health_url: str) -> None:
        """`health_url` answers 200 while it is up."""
        import httpx  # a bench of a running gateway has no servers, and may lack this package

        self._health_url = health_url
        # Without a proxy, and without kept connections, which a restart would break.
        self._client = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        self._http_error = httpx.HTTPError

    def wait_ready(self, *, timeout_s: float, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Waits until it is ready. False when `stopping()` became true first.

        Raises:
            CommandError: it ended, with the message of `failure()`, or is not ready after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while (reason := self.not_ready()) is not None:
            if stopping():
                return False
            if (status := self.child.exit_status()) is not None:
                raise CommandError(f"{self.child.name} {status} while starting: {self.failure()}")
            if time.monotonic() > deadline:
                raise CommandError(f"{self.child.name} is not ready after {timeout_s:g} s: {reason}")
            time.sleep(_POLL_S)
        return True

    def is_up(self) -> bool:
        """Whether it responds and, if it has models of its own, has loaded them."""
        try:
            return self.get(self._health_url, timeout_s=_QUICK_TIMEOUT_S).status_code == 200
        except OSError:
            return False

    def not_ready(self) -> str | None:
        """The reason why it accepts no requests yet; None when it does."""
        return None if self.is_up() else f"its log is {self.child.log_path}"

    def failure(self) -> str:
        """The reason of its failure: the last line of its log."""
        return self.child.log_tail(lines=1) or "its log is empty"

    def restart(self) -> None:
        """Kills the rest of it and of its processes, and starts it again on the same ports. Raises `OSError`."""
        self.child.restart()

    def get(self, url: str, *, timeout_s: float = _GET_TIMEOUT_S) -> httpx.Response:
        """The answer for a URL of it. Raises `OSError` if there is none."""
        try:
            return self._client.get(url, timeout=timeout_s)
        except self._http_error as exc:
            raise OSError(str(exc) or type(exc).__name__) from exc
