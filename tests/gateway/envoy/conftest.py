"""A real Envoy between clients and scripted servers, with the gateway as its external processor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.gateway.gateway_thread import Gateway
from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import manifest_text
from tests.support.envoy import Envoy
from tests.support.ports import lasting_ports

FULL_DUPLEX = {
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_trailer_mode": "SEND",
}
MODES = {"turns": {}, "full duplex": FULL_DUPLEX}


class Way(NamedTuple):
    """The parts of one way through Envoy."""

    envoy: Envoy
    gateway: Gateway
    plain: OpenAiServer
    speculative: OpenAiServer


@pytest.fixture
def start_path(
    tmp_path: Path,
    openai_server: Callable[..., OpenAiServer],
    gateway: Callable[..., Gateway],
    exit_stack: ExitStack,
) -> Callable[..., Way]:
    """Starts a gateway with its filter, two servers and an Envoy; all are stopped after the test."""

    def start(
        *, modes: dict[str, str] | None = None, model: str = "acme", api_key_env: str = "", **options: Any
    ) -> Way:
        plain, speculative = openai_server(), openai_server()
        [filter_port] = lasting_ports(1)
        text = manifest_text([plain.url], [speculative.url], upstream_model=model)
        if api_key_env:
            text = text.replace("{protocol: openai,", f"{{protocol: openai, apiKeyEnv: {api_key_env},")
        started = gateway(text, ext_proc=f"127.0.0.1:{filter_port}", **options)
        envoy = Envoy(tmp_path, filter_port=filter_port, gateway_port=started.port, models=[plain.port], modes=modes)
        exit_stack.callback(envoy.stop)
        return Way(envoy, started, plain, speculative)

    return start


@pytest.fixture(params=MODES)
def path(request: pytest.FixtureRequest, start_path: Callable[..., Way]) -> Way:
    """A way through Envoy, in each of the filter's modes."""
    return start_path(modes=MODES[request.param])
