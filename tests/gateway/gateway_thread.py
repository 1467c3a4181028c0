"""The gateway with its own HTTP protocol in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import uvicorn
from slipstream_core.observation import Draws
from slipstream_core.settings import GatewaySettings
from slipstream_gateway.app.app import build_app
from slipstream_gateway.decide.route import fresh_draws
from slipstream_gateway.server.bounds import Bounds
from slipstream_gateway.server.leaving import Leaving
from slipstream_gateway.server.protocol import bounded_http

from tests.support.metrics import total
from tests.support.polling import PATIENCE_S, eventually


class Gateway:
    """One gateway for one manifest file."""

    def __init__(
        self,
        manifest: Path,
        settings: GatewaySettings,
        *,
        port: int = 0,
        draw: Callable[[], Draws] = fresh_draws,
    ) -> None:
        self.manifest = manifest
        self.headers: dict[str, str] = {}  # with which metrics are read
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        self.port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            build_app(settings, draw=draw),
            loop="uvloop",
            http=bounded_http(Bounds(), Leaving()),
            ws="none",
            lifespan="on",
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started or not self._thread.is_alive(), "the gateway's start")
        assert self._thread.is_alive(), "the gateway did not start"

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the series called `name` that carry `labels`."""
        page = httpx.get(f"{self.url}/metrics", headers=self.headers, timeout=PATIENCE_S).text
        return total(page, name, **labels)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
