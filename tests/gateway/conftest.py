"""Real parts for the gateway's tests: OpenAI-compatible servers and the gateway itself, each in a thread."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from slipstream_core.observation import Draws
from slipstream_core.settings import Deadlines, GatewaySettings
from slipstream_gateway.decide.route import fresh_draws

from tests.gateway.gateway_thread import Gateway
from tests.gateway.key_file import Keys
from tests.gateway.openai_server import OpenAiServer
from tests.support.http_server import Asked, Reply, answering

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def openai_server(exit_stack: contextlib.ExitStack) -> Callable[..., OpenAiServer]:
    """Starts servers; all are stopped after the test."""
    return lambda port=0: exit_stack.enter_context(OpenAiServer(port))


@pytest.fixture
def upstream(openai_server: Callable[..., OpenAiServer]) -> OpenAiServer:
    """A server."""
    return openai_server()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """A file of keys."""
    return Keys(tmp_path / "keys.json")


@pytest.fixture(scope="session")
def run_gateway() -> Callable[..., contextlib.AbstractContextManager[Gateway]]:
    """A context in which a gateway serves a manifest's text, written to `path`."""

    @contextlib.contextmanager
    def run(
        path: Path,
        text: str,
        *,
        deadlines: Deadlines | None = None,
        port: int = 0,
        draw: Callable[[], Draws] = fresh_draws,
        **options: Any,
    ) -> Iterator[Gateway]:
        path.write_text(text)
        settings = GatewaySettings(manifest=path, deadlines=deadlines or Deadlines(connect_s=10.0), **options)
        started = Gateway(path, settings, port=port, draw=draw)
        try:
            yield started
        finally:
            started.stop()

    return run


@pytest.fixture
def gateway(
    tmp_path: Path,
    run_gateway: Callable[..., contextlib.AbstractContextManager[Gateway]],
    exit_stack: contextlib.ExitStack,
) -> Callable[..., Gateway]:
    """Starts gateways for a manifest's text; all are stopped after the test."""
    return lambda text, **options: exit_stack.enter_context(run_gateway(tmp_path / "pair.yaml", text, **options))


@pytest.fixture
def serve(exit_stack: contextlib.ExitStack) -> Callable[[GatewaySettings], Gateway]:
    """Starts gateways for settings; all are stopped after the test."""

    def start(settings: GatewaySettings) -> Gateway:
        started = Gateway(settings.manifest or Path(), settings)
        exit_stack.callback(started.stop)
        return started

    return start


class OtlpReceiver(NamedTuple):
    """A receiver of OTLP over HTTP: its address, and what it got, each with its path."""

    url: str
    got: list[tuple[str, bytes]]

    def all_bytes(self) -> bytes:
        """Strings are plain bytes in protobuf."""
        return b"".join(body for _, body in self.got)


@pytest.fixture
def otlp_receiver() -> Iterator[OtlpReceiver]:
    got: list[tuple[str, bytes]] = []

    def keep(asked: Asked) -> Reply:
        got.append((asked.path, asked.body))
        return Reply()

    with answering(keep) as url:
        yield OtlpReceiver(url, got)


@pytest.fixture(scope="module")  # it keeps an event loop in this thread while it is open, which other tests need free
def browser() -> Iterator[Browser]:
    """The machine's Chromium. It is imported here, because few tests need it."""
    from tests.support.browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the gateway logged so far; gRPC's own loggers have things to say of a busy machine."""
    caplog.set_level(logging.INFO, "slipstream_gateway")

    def messages() -> list[str]:
        ours = [record for record in caplog.records if record.name.startswith("slipstream_gateway")]
        return [f"{record.levelname} {record.getMessage()}" for record in ours]

    return messages
