"""The kill switch in the manifest's file, before a real Triton: what runs goes on, and nobody can tell by its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST

from tests.gateway.serving.triton_streams import SPECULATIVE, Streamed, stream, undisturbed, until_decided

KILLS = {
    "pair": ("  model: slipstream-embedded\n", "  model: slipstream-embedded\n  killSwitch: true\n"),
    "policy": ("  pair: embedded\n", "  pair: embedded\n  killSwitch: true\n"),
}


# The engine does not wait for a busy machine's gateway to look at the file: a kill may come when all is said.
ATTEMPTS = 8


@pytest.fixture
def serve(gateway: Callable[..., Any], triton_endpoint: str) -> Callable[[], Any]:
    """Starts a gateway that has learnt nothing."""
    text = EMBEDDED_MANIFEST.read_text().replace(
        "kind: slipstream\n", f'kind: slipstream\n    endpoints: ["grpc://{triton_endpoint}"]\n'
    )

    def start() -> Any:
        running = gateway(text)
        running.text = text
        return running

    return start


def across_a_kill(served: Any, whose: str) -> list[Streamed]:
    """Two streams, amid which the kill switch was turned on."""
    with stream(served, SPECULATIVE) as one, stream(served, SPECULATIVE) as other:
        running = [Streamed(one), Streamed(other)]
        for found in running:
            found.read(pieces=5)
        served.manifest.write_text(served.text.replace(*KILLS[whose]))
        killed = until_decided(served, "plain")
        assert killed["reason"] == "kill_switch"
        for response, found in zip((one, other), running, strict=True):
            assert response.headers["x-slipstream-arm"] == "speculative"  # what it was decided to be
            found.read()
    return running


@pytest.mark.parametrize("whose", KILLS)
def test_greedy_streams_across_a_kill_are_those_of_an_undisturbed_run(serve: Callable[[], Any], whose: str) -> None:
    for _ in range(ATTEMPTS):
        served = serve()
        whole = undisturbed(served)
        running = across_a_kill(served, whose)
        for found in running:
            assert found.text == whole.text
            assert found.usage["completion_tokens"] == 400
            assert found.drafted > 0
        if all(found.drafted < whole.drafted for found in running):
            break
        served.stop()
    else:
        pytest.fail(f"in none of {ATTEMPTS} attempts did two streams stop drafting")
    assert served.metric("slipstream_requests_total", arm="speculative", status="ok") == 3
    served.manifest.write_text(served.text)
    again = until_decided(served, "speculative")
    assert again["reason"] == "client_asked"
    assert again["numbers"]["output_tokens_samples"] == 0  # an answer of two halves teaches nothing of either
    assert undisturbed(served).drafted == whole.drafted
