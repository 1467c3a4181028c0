"""The gateway as a child process of `slipstream up`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from slipstream_core.errors import CommandError

from slipstream_tools.up.cache import Report
from slipstream_tools.up.engine_checks import ServerCheck, read_checks, wait_checked
from slipstream_tools.up.options import EXAMPLES, LOOPBACK, UpOptions
from slipstream_tools.up.probe import Probe
from slipstream_tools.up.processes import Child

DRAIN_S = 5
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05


class GatewayProcess:
    """A running `slipstream gateway` for the manifest of `options`. Pairs without an address, also those of a later
    manifest, are served by the Triton at `options.grpc_port`, or by the server that `addresses` has for them."""

    def __init__(self, *, options: UpOptions, run_dir: Path, addresses: Mapping[str, str] | None = None) -> None:
        """Starts it; it is not ready yet. `addresses`: the URL of a pair's own server, by the pair's name."""
        self._probe = Probe()
        self._live_url = f"{options.url}/health/live"
        self._ready_url = f"{options.url}/health/ready"
        self._workers = options.workers
        self._evidence_url = f"{options.admin_url}/v1/evidence"
        self.child = Child(
            name="the gateway",
            command=[
                *(sys.executable, "-m", "slipstream_tools.cli", "gateway"),
                *("--manifest", str(options.manifest)),
                *("--host", options.host),
                *("--port", str(options.port)),
                *("--workers", str(options.workers)),
                *("--drain", str(DRAIN_S)),
                *(
                    ("--local-endpoint", f"grpc://{LOOPBACK}:{options.grpc_port}")
                    if options.grpc_port is not None
                    else ()
                ),
                *(part for pair, url in (addresses or {}).items() for part in ("--endpoint", f"{pair}={url}")),
                *(("--classifier", str(options.classifier)) if options.classifier is not None else ()),
                *(("--capture-store", options.capture_store) if options.capture_store is not None else ()),
                *(("--state-folder", str(run_dir)) if options.manifest.parent == EXAMPLES else ()),
                *(("--admin-port", str(options.admin_port)) if options.admin_port is not None else ()),
                *(("--keys", str(options.keys)) if options.keys is not None else ()),
                *(("--allow-anonymous",) if options.allow_anonymous else ()),
            ],
            log_path=run_dir / "gateway.log",
            # Not on the command line, which every user of the machine can read: the address may contain a password.
            env={**os.environ, **({"SLIPSTREAM_REDIS_URL": options.redis} if options.redis else {})},
        )

    def wait_ready(self, *, timeout_s: float, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Waits until it accepts requests. False when `stopping()` became true first.

        Raises:
            CommandError: it ended, or is not ready after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while (reason := self._not_ready()) is not None:
            if stopping():
                return False
            if (status := self.child.exit_status()) is not None:
                raise CommandError(f"the gateway {status} while starting: {self.failure()}")
            if time.monotonic() > deadline:
                raise CommandError(f"the gateway is not ready after {timeout_s:g} s: {reason}")
            time.sleep(_POLL_S)
        return True

    def wait_checked(
        self, *, timeout_s: float, stopping: Callable[[], bool], report: Report = lambda line: None
    ) -> bool:
        """Waits until it has checked its engines once, because no request speculates there before. Prints the results
        with `report`. False when `stopping()` became true first."""
        return wait_checked(self, workers=self._workers, timeout_s=timeout_s, report=report, stopping=stopping)

    def is_up(self) -> bool:
        """Whether it responds. It may have no server to send requests to."""
        return self._probe.is_ok(self._live_url)

    def failure(self) -> str:
        """The reason of its failure: the last line of its log."""
        return self.child.log_tail(lines=1) or "its log is empty"

    def restart(self) -> None:
        """Kills the rest of it and of its workers, and starts it again on the same port. Raises `OSError`."""
        self.child.restart()

    def stop(self) -> None:
        """Stops it, giving running streams time to finish."""
        self.child.stop(timeout_s=STOP_TIMEOUT_S)

    def checks(self) -> list[ServerCheck] | None:
        """The state of the gateway's checks; None if it does not disclose that without a key. Raises `OSError` if it
        does not respond."""
        answer = self._probe.get(self._evidence_url)
        return read_checks(answer.content) if answer.is_success else None

    def _not_ready(self) -> str | None:
        """The reason why it does not accept requests yet; None when it does."""
        try:
            answer = self._probe.get(self._ready_url)
        except OSError as exc:
            return str(exc)
        return None if answer.is_success else answer.text
