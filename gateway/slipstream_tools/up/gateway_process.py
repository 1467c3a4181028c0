"""The gateway as a child process of `slipstream up`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from slipstream_tools.up.engine_checks import ServerCheck, read_checks
from slipstream_tools.up.options import EXAMPLES, LOOPBACK, UpOptions
from slipstream_tools.up.processes import Child
from slipstream_tools.up.server import Server

DRAIN_S = 5
STOP_TIMEOUT_S = 10.0


class GatewayProcess(Server):
    """A running `slipstream gateway` for the manifest of `options`. Pairs without an address, also those of a later
    manifest, are served by the Triton at `options.grpc_port`, or by the server that `addresses` has for them."""

    def __init__(self, *, options: UpOptions, run_dir: Path, addresses: Mapping[str, str] | None = None) -> None:
        """Starts it; it is not ready yet. `addresses`: the URL of a pair's own server, by the pair's name."""
        super().__init__(health_url=f"{options.url}/health/live")
        self._ready_url = f"{options.url}/health/ready"
        self._evidence_url = f"{options.admin_url}/v1/evidence"
        given = {
            "--classifier": options.classifier,
            "--capture-store": options.capture_store,
            "--admin-port": options.admin_port,
            "--keys": options.keys,
            "--local-endpoint": None if options.grpc_port is None else f"grpc://{LOOPBACK}:{options.grpc_port}",
            "--state-folder": run_dir if options.manifest.parent == EXAMPLES else None,
        }
        self.child = Child(
            name="the gateway",
            command=[
                *(sys.executable, "-m", "slipstream_tools.cli", "gateway"),
                *("--manifest", str(options.manifest)),
                *("--host", options.host),
                *("--port", str(options.port)),
                *("--workers", str(options.workers)),
                *("--drain", str(DRAIN_S)),
                *(part for pair, url in (addresses or {}).items() for part in ("--endpoint", f"{pair}={url}")),
                *(part for name, value in given.items() if value is not None for part in (name, str(value))),
                *(("--allow-anonymous",) if options.allow_anonymous else ()),
            ],
            log_path=run_dir / "gateway.log",
            # Not on the command line, which every user of the machine can read: the address may contain a password.
            env={**os.environ, **({"SLIPSTREAM_REDIS_URL": options.redis} if options.redis is not None else {})},
        )

    def stop(self) -> None:
        """Stops it, giving running streams time to finish."""
        self.child.stop(timeout_s=STOP_TIMEOUT_S)

    def checks(self) -> list[ServerCheck] | None:
        """The state of the gateway's checks; None if it does not disclose that without a key. Raises `OSError` if it
        does not respond."""
        answer = self.get(self._evidence_url)
        return read_checks(answer.content) if answer.is_success else None

    def not_ready(self) -> str | None:
        """Its own reason; it may be up, and have no server to send requests to."""
        try:
            answer = self.get(self._ready_url)
        except OSError as exc:
            return str(exc)
        return None if answer.is_success else answer.text
