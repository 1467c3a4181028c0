"""A server as a child process of `slipstream up`: watched until ready, started again."""

from __future__ import annotations

import time
from collections.abc import Callable

from slipstream_core.errors import CommandError

from slipstream_tools.up.probe import Probe
from slipstream_tools.up.processes import Child

_POLL_S = 0.1


class Server:
    """A running server. `health_url` answers 200 while it is up."""

    def __init__(self, child: Child, *, health_url: str) -> None:
        self.child = child
        self._health_url = health_url
        self._probe = Probe()

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
        return self._probe.is_ok(self._health_url)

    def not_ready(self) -> str | None:
        """The reason why it accepts no requests yet; None when it does."""
        return None if self.is_up() else f"its log is {self.child.log_path}"

    def failure(self) -> str:
        """The reason of its failure: the last line of its log."""
        return self.child.log_tail(lines=1) or "its log is empty"

    def restart(self) -> None:
        """Kills the rest of it and of its processes, and starts it again on the same ports. Raises `OSError`."""
        self.child.restart()
