"""Speculation is shed before anybody is: drafts get shorter, then there are none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_gateway.manifest import EMBEDDED_MANIFEST, Route, load_file
from slipstream_gateway.measurement import Draws, Estimate, Forecast, Level
from slipstream_gateway.routing import NO_DRAWS, decide
from slipstream_gateway.routing.pressure import SHRINK_FROM, STOP_AT, shortened, stops
from slipstream_gateway.types import (
    Arm,
    Decision,
    Endpoint,
    GenerationRequest,
    Message,
    Mode,
    Reason,
    RequestProfile,
    TaskType,
)

ALL_DRAWN = Draws(hold_back=0.0, exploration=0.0, draft_length=0.0, parity=0.0, rollout=0.0)


@pytest.fixture(scope="module")
def route(tmp_path_factory: pytest.TempPathFactory) -> Route:
    """One that speculates with drafts of 6 by rules alone, and lets clients choose."""
    path = tmp_path_factory.mktemp("pressure") / "pair.yaml"
    path.write_text(
        """
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {name: p}
spec: {model: m, maxDraftTokens: 6, engine: {kind: slipstream}, target: {source: t}, draft: {kind: ngram}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {name: p}
spec: {pair: p, decision: rules, allowClientMode: true}
"""
    )
    return load_file(path).routes["m"]


@pytest.fixture(scope="module")
def forecast_route(route: Route) -> Route:
    """The same, deciding by forecast."""
    assert route.policy is not None
    spec = msgspec.structs.replace(route.policy.spec, decision="cautious")
    return msgspec.structs.replace(route, policy=msgspec.structs.replace(route.policy, spec=spec))


def forecast(level: Level, *, neighbours_s: float | None = None, **means: float) -> Forecast:
    """Drafts of 6 that save half of the time, unless `means` say otherwise."""
    means = {
        "output_tokens": 200.0,
        "acceptance": 0.8,
        "plain_tpot_s": 0.010,
        "step_base_s": 0.012,
        "step_per_draft_token_s": 0.0005,
        "plain_ttft_s": 0.05,
        "speculative_ttft_s": 0.05,
    } | means
    parts: Any = {
        name: Estimate(mean=mean, se=0.02 * mean, samples=20.0, level=level)
        for name, mean in (means | ({} if neighbours_s is None else {"neighbours_step_s": neighbours_s})).items()
    }
    return Forecast(output_tokens_spread=0.2, load=64.0, neighbours_draft_length=6.0, **parts)


def decision(
    route: Route,
    pressure: float,
    *,
    mode: Mode = Mode.AUTO,
    draws: Draws = NO_DRAWS,
    expected: Forecast | None = None,
) -> Decision:
    request = GenerationRequest(
        endpoint=Endpoint.CHAT, model="m", messages=(Message(role="user", content="Sum up."),), mode=mode
    )
    profile = RequestProfile(
        task=TaskType.SUMMARIZATION,
        expected_output_tokens=200.0,
        rare_token_share=0.02,
        structured_output=False,
        prompt_tokens=300,
        confidence=0.9,
    )
    return decide(request, profile, route, forecast=expected, draws=draws, pressure=pressure)


@given(st.integers(1, 16), st.floats(0, 1), st.floats(0, 1))
def test_drafts_only_get_shorter_as_pressure_grows(longest: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 1 <= shortened(longest, high) <= shortened(longest, low) <= longest
    assert shortened(longest, SHRINK_FROM) == longest
    assert not (stops(low) and not stops(high))


def test_order_of_shedding(route: Route) -> None:
    lengths = [decision(route, pressure).draft_length for pressure in (0.0, SHRINK_FROM, 0.5, 0.7, STOP_AT, 1.0)]
    assert lengths == [6, 6, 3, 1, 0, 0]
    stopped = decision(route, STOP_AT)
    assert (stopped.arm, stopped.reason) == (Arm.PLAIN, Reason.PRESSURE)
    assert "75%" in stopped.detail
    assert stopped.numbers["pressure"] == STOP_AT


@given(st.floats(0, 1))
def test_what_is_measured_to_pay_at_this_load_is_never_shed(forecast_route: Route, pressure: float) -> None:
    """Without it the servers would do less in the same time, and the queue would grow."""
    calm = decision(forecast_route, 0.0, expected=forecast(Level.CLASS))
    assert calm.reason is Reason.SPECULATION_PAYS
    pressed = decision(forecast_route, pressure, expected=forecast(Level.CLASS))
    assert (pressed.arm, pressed.draft_length) == (calm.arm, calm.draft_length)


@pytest.mark.parametrize(
    "expected",
    [
        forecast(Level.PRIOR),  # nobody measured it here
        forecast(Level.CLASS, acceptance=0.2, step_base_s=0.030, neighbours_s=0.060),  # as company, not by itself
    ],
)
def test_what_is_not_known_to_be_a_gain_is_shed_all_the_same(forecast_route: Route, expected: Forecast) -> None:
    assert decision(forecast_route, 0.0, expected=expected).reason is Reason.SPECULATION_PAYS
    assert decision(forecast_route, 0.5, expected=expected).draft_length <= 3
    assert decision(forecast_route, STOP_AT, expected=expected).reason is Reason.PRESSURE


def test_what_is_shed_is_no_control_and_what_a_client_asked_for_stands(route: Route) -> None:
    assert decision(route, 0.0, draws=ALL_DRAWN).arm is Arm.CONTROL
    assert decision(route, 1.0, draws=ALL_DRAWN).arm is Arm.PLAIN
    assert decision(route, 1.0, mode=Mode.SPECULATIVE).reason is Reason.CLIENT_ASKED


def test_route_command_explains_pressure(tmp_path: Path) -> None:
    body = {"model": next(iter(load_file(EMBEDDED_MANIFEST).routes)), "messages": [{"role": "user", "content": "Hi"}]}
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    command = [sys.executable, "-m", "slipstream_gateway.cli", "route", "--json", "--pressure", "0.5", str(path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert json.loads(said.stdout)["numbers"]["pressure"] == 0.5
