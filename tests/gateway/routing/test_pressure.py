"""Speculation is shed before anybody is: drafts get shorter, then there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.manifest import EMBEDDED_MANIFEST, Route, load_file
from slipstream_core.observation import Draws, Forecast, Level
from slipstream_core.types import Arm, Decision, Mode, Reason
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, decide
from slipstream_gateway.decide.route.pressure import SHRINK_FROM, STOP_AT, pressure_of, shortened, stops

from tests.gateway.routing.cases import forecast, profile, request, route
from tests.support.command import run_slipstream

ALL_DRAWN = Draws(**dict.fromkeys(Draws.__struct_fields__, 0.0))


RULES = route(policy={"decision": "rules", "allowClientMode": True})  # speculates with drafts of 6
CAUTIOUS = route(policy={"decision": "cautious"})
# Drafts that cost next to nothing, so that 6 of them are best.
CHEAP = {"step_per_draft_token_s": 0.0005}
PAYS = forecast(level=Level.CLASS, load=64.0, **CHEAP)
UNSURE = [
    forecast(level=Level.PRIOR, load=64.0, **CHEAP),  # nobody measured it here
    forecast(  # as company, not by itself
        level=Level.CLASS,
        load=64.0,
        neighbours_draft_length=6.0,
        **CHEAP | {"acceptance": 0.2, "step_base_s": 0.030, "neighbours_step_s": 0.060},
    ),
]


def decision(served: Route, pressure: float, *, expected: Forecast | None = None, **more: Any) -> Decision:
    draws = more.pop("draws", NO_DRAWS)
    return decide(DecisionInputs(request(**more), profile(), served, forecast=expected, draws=draws, pressure=pressure))


@given(st.integers(0, 64), st.integers(0, 64), st.integers(1, 32), st.integers(1, 32), st.booleans())
def test_pressure_only_grows_with_what_is_taken_and_falls_with_places(
    one: int, other: int, few: int, more: int, waiting: bool
) -> None:
    fewer, taken = sorted((one, other))
    places = few + more
    found = pressure_of(taken, places, waiting=waiting)
    assert 0.0 <= pressure_of(fewer, places, waiting=waiting) <= found <= 1.0
    assert found <= pressure_of(taken, few, waiting=waiting)
    assert found <= pressure_of(taken, places, waiting=True) == 1.0
    assert (found == 1.0) is (waiting or taken >= places)


@given(st.integers(1, 16), st.floats(0, 1), st.floats(0, 1))
def test_drafts_only_get_shorter_as_pressure_grows(longest: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 1 <= shortened(longest, high) <= shortened(longest, low) <= longest
    assert shortened(longest, SHRINK_FROM) == longest
    assert not (stops(low) and not stops(high))


@given(st.integers(10, 600))
def test_drafts_shrink_and_stop_before_the_last_place_is_taken(places: int) -> None:
    """Request by request, as each finds those before it: none is made to wait by drafts that nobody is sure of."""
    lengths = [decision(RULES, pressure_of(taken, places, waiting=False)).draft_length for taken in range(places)]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (6, 0)
    assert set(lengths) & {1, 2, 3, 4, 5}


def test_order_of_shedding() -> None:
    lengths = [decision(RULES, pressure).draft_length for pressure in (0.0, SHRINK_FROM, 0.8, 0.88, STOP_AT, 1.0)]
    assert lengths == [6, 6, 3, 1, 0, 0]
    stopped = decision(RULES, STOP_AT)
    assert (stopped.arm, stopped.reason) == (Arm.PLAIN, Reason.PRESSURE)
    assert "90% of the places" in stopped.detail
    assert stopped.numbers["pressure"] == STOP_AT


@given(st.floats(0, 1))
def test_what_is_measured_to_pay_at_this_load_is_never_shed(pressure: float) -> None:
    """Without it the servers would do less in the same time, and the queue would grow."""
    calm = decision(CAUTIOUS, 0.0, expected=PAYS)
    assert calm.reason is Reason.SPECULATION_PAYS
    pressed = decision(CAUTIOUS, pressure, expected=PAYS)
    assert (pressed.arm, pressed.draft_length) == (calm.arm, calm.draft_length)


@pytest.mark.parametrize("expected", UNSURE, ids=["prior", "company"])
def test_what_is_not_known_to_be_a_gain_is_shed_all_the_same(expected: Forecast) -> None:
    assert decision(CAUTIOUS, 0.0, expected=expected).reason is Reason.SPECULATION_PAYS
    assert decision(CAUTIOUS, 0.8, expected=expected).draft_length <= 3
    assert decision(CAUTIOUS, STOP_AT, expected=expected).reason is Reason.PRESSURE


def test_nothing_is_explored_while_places_are_scarce() -> None:
    uncertain = forecast(acceptance=0.3, doubt=0.3)
    for pressure, reason in ((SHRINK_FROM, Reason.EXPLORATION), (0.75, Reason.BREAK_EVEN)):
        assert decision(CAUTIOUS, pressure, expected=uncertain, draws=ALL_DRAWN).reason is reason


def test_what_is_shed_is_no_control_and_what_a_client_asked_for_stands() -> None:
    assert decision(RULES, 0.0, draws=ALL_DRAWN).arm is Arm.CONTROL
    assert decision(RULES, 1.0, draws=ALL_DRAWN).arm is Arm.PLAIN
    assert decision(RULES, 1.0, mode=Mode.SPECULATIVE).reason is Reason.CLIENT_ASKED


@pytest.mark.integration
def test_route_command_explains_pressure(tmp_path: Path) -> None:
    body = {"model": next(iter(load_file(EMBEDDED_MANIFEST).routes)), "messages": [{"role": "user", "content": "Hi"}]}
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    said = run_slipstream("route", "--json", "--pressure", "0.5", str(path))
    assert json.loads(said.stdout)["numbers"]["pressure"] == 0.5
