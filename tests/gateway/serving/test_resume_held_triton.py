"""Streams of a real Triton that are held where they ask to go on, and what happens meanwhile."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.settings import Deadlines, HealthSettings, OverloadSettings

from tests.gateway.serving.triton_streams import SPECULATIVE, Streamed, stream, undisturbed, until_decided
from tests.support.breaking_network import BreakingNetwork, Cut
from tests.support.polling import PATIENCE_S, eventually

# It waits for a silent server for as long as that takes, and no fault changes where it goes.
DEADLINES = Deadlines(connect_s=2.0, stall_s=2 * PATIENCE_S, resume_s=PATIENCE_S)
UNMOVED = HealthSettings(unreachable_in_a_row=1_000_000, failed_in_a_row=1_000_000)


@pytest.fixture(scope="module")
def network(breaking_network: Callable[..., BreakingNetwork], triton_endpoint: str) -> BreakingNetwork:
    return breaking_network(triton_endpoint)


@pytest.fixture
def served(gateway: Callable[..., Any], network: BreakingNetwork) -> Any:
    """A gateway that sees two servers; both are this run's Triton, over a network that breaks."""
    endpoints = json.dumps([f"grpc://127.0.0.1:{port}" for port in network.ports])
    text = EMBEDDED_MANIFEST.read_text().replace(
        "kind: slipstream\n", f"kind: slipstream\n    endpoints: {endpoints}\n"
    )
    return gateway(text, deadlines=DEADLINES, health=UNMOVED, overload=OverloadSettings(adaptive=False))


def warm(served: Any, network: BreakingNetwork, **more: Any) -> Streamed:
    """What nothing befalls, asked for at both addresses, so that both are connected."""
    network.plan()
    answers = [undisturbed(served, **more) for _ in network.ports]
    assert answers[0].text == answers[1].text
    return answers[0]


@contextlib.contextmanager
def held(served: Any, network: BreakingNetwork, **more: Any) -> Iterator[Streamed]:
    """A stream that has begun, was broken, and is kept waiting where it asks to go on, until the next plan."""
    # Amid the answer: it is not over before it can be broken, and has the progress that permits a second resumption.
    network.plan(Cut(15_000, "stall"))
    with stream(served, SPECULATIVE, **more) as response:
        found = Streamed(response)
        found.read(pieces=1)
        eventually(lambda: network.made == 1, "a stream that stalls")
        network.plan(Cut(1, "stall"))  # breaks what stalls
        eventually(lambda: network.made == 1, "a held resumption")
        yield found


@pytest.mark.parametrize("temperature", [0, 0.01])
def test_stream_that_is_killed_before_it_goes_on_drafts_no_more(
    served: Any, network: BreakingNetwork, temperature: float
) -> None:
    whole = warm(served, network, temperature=temperature, seed=1)  # hotter answers to this prompt are shorter
    with held(served, network, temperature=temperature, seed=1) as found:
        text = served.manifest.read_text()
        served.manifest.write_text(text.replace("  pair: embedded\n", "  pair: embedded\n  killSwitch: true\n"))
        assert until_decided(served, "plain")["reason"] == "kill_switch"
        network.plan()
        found.read()
    assert found.usage["slipstream"]["resumed"] == ["upstream_unavailable"]
    assert found.drafted < whole.drafted / 2  # before the break alone
    assert found.text == whole.text


def test_client_that_leaves_while_its_stream_is_held_leaves_nothing_behind(
    served: Any, network: BreakingNetwork
) -> None:
    whole = warm(served, network)
    with held(served, network):
        pass
    for name in ("slipstream_requests_in_flight", "slipstream_admission_in_flight"):
        eventually(lambda name=name: served.metric(name) == 0, name)
    assert served.metric("slipstream_requests_total", status="cancelled") == 1
    assert served.metric("slipstream_resumed_total") == 0
    assert warm(served, network).text == whole.text
