"""The gateway in front of real vLLM servers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from slipstream_core.settings import Deadlines, GatewaySettings
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.gateway_thread import Gateway
from tests.support.manifests import pair_yaml

MODEL = "slipstream-embedded"


def manifest(
    endpoints: Sequence[str], *, plain: str | None = None, draft_tokens: int = 4, policy: str = "", kill: bool = False
) -> str:
    """One pair `pair` of engine kind vllm, whose clients may choose their arm."""
    pool = f'plain: {{endpoints: ["{plain}"]}}, ' if plain is not None else ""
    return pair_yaml(
        f"{{kind: vllm, {pool}endpoints: {json.dumps(list(endpoints))}}}",
        f"maxDraftTokens: {draft_tokens}",
        f"killSwitch: {json.dumps(kill)}",
        model=MODEL,
        policy=f", allowClientMode: true, maxTemperature: 2, parityShare: 0{policy}",
    )


@pytest.fixture(scope="module")
def start_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Gateway]]:
    """Starts gateways for a manifest's text; all are stopped after the module."""
    with contextlib.ExitStack() as stack:

        def start(text: str, **deadlines: float) -> Gateway:
            path = Path(tmp_path_factory.mktemp("gateway"), "pair.yaml")
            path.write_text(text)
            started = Gateway(path, GatewaySettings(manifest=path, deadlines=Deadlines(connect_s=10.0, **deadlines)))
            stack.callback(started.stop)
            return started

        yield start


@pytest.fixture(scope="module")
def served(start_gateway: Callable[..., Gateway], vllm_server: VllmServer) -> Gateway:
    """A gateway in front of one server with the plugin."""
    return start_gateway(manifest([vllm_server.url]))
