"""The kill switch in the manifest's file, before a real vLLM: what runs stops drafting, and its text stays the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.gateway_thread import Gateway
from tests.gateway.serving.triton_streams import SPECULATIVE, Streamed, stream, undisturbed, until_decided
from tests.vllm.gateway.conftest import manifest
from tests.vllm.gateway.vllm_answers import until_reason

# A busy machine's gateway may see the file only when all is said.
ATTEMPTS = 5


def across_a_kill(served: Gateway, killed: str, *, streams: int) -> list[Streamed]:
    """Streams amid which the kill switch was turned on."""
    contexts = [stream(served, SPECULATIVE) for _ in range(streams)]
    responses = [context.__enter__() for context in contexts]
    try:
        running = [Streamed(response) for response in responses]
        for found in running:
            found.read(pieces=3)
        served.manifest.write_text(killed)
        assert until_decided(served, "plain")["reason"] == "kill_switch"
        for response, found in zip(responses, running, strict=True):
            assert response.headers["x-slipstream-arm"] == "speculative"  # what it was decided to be
            found.read()
    finally:
        for context in contexts:
            context.__exit__(None, None, None)
    return running


@pytest.fixture
def served(start_gateway: Callable[..., Gateway], vllm_server: VllmServer) -> Gateway:
    found = start_gateway(manifest([vllm_server.url]))
    until_reason(found, "client_asked")
    return found


@pytest.mark.slow  # long streams; tests/gateway has scripted servers
def test_streams_across_a_kill_stop_drafting_and_keep_their_text(served: Gateway, vllm_server: VllmServer) -> None:
    live, killed = manifest([vllm_server.url]), manifest([vllm_server.url], kill=True)
    whole = undisturbed(served)
    assert whole.drafted > 0
    for _ in range(ATTEMPTS):
        running = across_a_kill(served, killed, streams=4)
        for found in running:
            assert found.text == whole.text
            assert found.usage["completion_tokens"] == 400
        if all(0 < found.drafted < whole.drafted for found in running):
            break
        served.manifest.write_text(live)
        until_decided(served, "speculative")
    else:
        pytest.fail(f"in none of {ATTEMPTS} attempts did all streams stop drafting")
    served.manifest.write_text(live)
    assert until_decided(served, "speculative")["reason"] == "client_asked"
    assert undisturbed(served).drafted == whole.drafted  # what came after the kill drafts again
