"""The break-even map says of every point what the routing decision would."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest import ClassStanding, Standing, compile_table, parse
from slipstream_core.manifest.status import Phase
from slipstream_core.observation import Estimate, Forecast, Level
from slipstream_core.settings import GatewaySettings
from slipstream_core.types import Arm, Endpoint, GenerationRequest, Message, Reason, RequestProfile, TaskType
from slipstream_gateway.app.app import connect
from slipstream_gateway.console.map import ACCEPTANCES, LENGTHS, ClassPoint, break_even_map
from slipstream_gateway.console.state import Traffic
from slipstream_gateway.decide.estimate import Learner
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, decide
from slipstream_gateway.fleet.fleet import Fleet

from tests.support.manifests import EMBEDDED, pair_yaml

REQUEST = GenerationRequest(endpoint=Endpoint.CHAT, model="acme", messages=(Message(role="user", content="Hello."),))
PROFILE = RequestProfile(
    task=TaskType.SUMMARIZATION, expected_output_tokens=80.0, rare_token_share=0.0, structured_output=False,
    prompt_tokens=256, confidence=1.0,
)  # fmt: skip


def _pair(more: str) -> tuple[Any, ...]:
    policy = f", holdBackShare: 0, explorationShare: 0, {more}"
    return tuple(parse(pair_yaml("{kind: slipstream}", "maxDraftTokens: 6", *EMBEDDED, policy=policy)))


class _Remembering(Learner):
    """Remembers what it forecast last."""

    last: Forecast

    def forecast(self, *args: Any, **options: Any) -> Forecast:
        self.last = super().forecast(*args, **options)
        return self.last


def _sure(value: float) -> Estimate:
    return Estimate(mean=value, se=0.0, samples=1.0, level=Level.CLASS)


@pytest.mark.parametrize("more", ["margin: 0", "margin: 0.2", "margin: 0.05, draftTokens: 2"])
async def test_a_point_pays_exactly_where_a_request_with_its_figures_would_speculate(more: str) -> None:
    settings = GatewaySettings(manifest=Path())
    fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
    fleet.swap(compile_table(_pair(more), local_endpoints=("grpc://127.0.0.1:9",)))
    (served,) = fleet.current.routes.values()
    learner = _Remembering()
    found = break_even_map(served, learner, ())
    assert not found.unknown
    arms = set()
    for row, acceptance in zip(found.saved, ACCEPTANCES, strict=True):
        for saved, tokens in zip(row, LENGTHS, strict=True):
            known = msgspec.structs.replace(learner.last, output_tokens=_sure(tokens), acceptance=_sure(acceptance))
            decision = decide(DecisionInputs(REQUEST, PROFILE, served.route, forecast=known, draws=NO_DRAWS))
            assert decision.reason in (Reason.SPECULATION_PAYS, Reason.BREAK_EVEN)
            if abs(saved - found.margin) > 0.0005:  # shares are rounded to a thousandth
                assert (decision.arm is Arm.SPECULATIVE) == (saved > found.margin), (tokens, acceptance)
                arms.add(decision.arm)
    assert arms == {Arm.SPECULATIVE, Arm.PLAIN}
    await fleet.aclose()


async def _points(more: str, *, standing: Standing | None = None, **rows: int) -> dict[str, ClassPoint]:
    """The classes on the map by their names, each with requests of that many output tokens."""
    settings = GatewaySettings(manifest=Path())
    fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
    table = compile_table(_pair(more), local_endpoints=("grpc://127.0.0.1:9",))
    if standing is not None:
        routes = {name: msgspec.structs.replace(route, standing=standing) for name, route in table.routes.items()}
        table = msgspec.structs.replace(table, routes=routes)
    fleet.swap(table)
    (served,) = fleet.current.routes.values()
    traffic = [
        Traffic(
            pair="pair", request_class=name.replace("_to_", "/"), arm="speculative", requests=[10], drafted=[100],
            accepted=[90], rejected=5, prompt_tokens=100, output_tokens=10 * tokens,
        )
        for name, tokens in rows.items()
    ]  # fmt: skip
    found = break_even_map(served, Learner(), traffic)
    await fleet.aclose()
    assert not found.unknown
    return {point.request_class: point for point in found.classes}


async def test_a_class_that_a_rule_decides_says_so_wherever_it_lies() -> None:
    rules = "classes: [{name: code, mode: plain}, {name: code/long, mode: auto}, {name: short_qa, mode: speculative}]"
    points = await _points(
        f"margin: 0, {rules}", code_to_medium=100, code_to_long=400, short_qa_to_short=2, open_chat_to_long=400
    )
    assert points["code/medium"].saved > 0.0  # the map alone would say that it speculates
    assert (points["code/medium"].ruled, points["code/medium"].why) == (
        "plain", "the policy's rule for code requires plain",
    )  # fmt: skip
    assert (points["short_qa/short"].ruled, points["short_qa/short"].why) == (
        "speculative", "the policy's rule for short_qa requires speculative",
    )  # fmt: skip
    for free in ("code/long", "open_chat/long"):
        assert (points[free].ruled, points[free].why) == ("", "")


async def test_a_mean_outside_of_its_class_is_held_to_the_rule_of_the_class() -> None:
    """Answers of a class may turn out shorter or longer than was expected."""
    points = await _points("classes: [{name: code/short, mode: plain}]", code_to_short=300, code_to_long=20)
    assert points["code/short"].ruled == "plain"
    assert points["code/long"].ruled == ""


async def test_a_cautious_policy_says_where_a_saving_is_not_sure() -> None:
    (expected,) = (await _points("margin: 0", code_to_long=200)).values()
    assert expected.saved > 0.0
    assert expected.ruled == ""
    cautious = "margin: 0, decision: cautious, confidence: 0.999"
    (unsure,) = (await _points(cautious, code_to_long=200)).values()
    assert unsure.ruled == "plain"
    assert "with certainty only" in unsure.why


async def test_rules_alone_and_thresholds_are_told_from_the_break_even() -> None:
    points = await _points("decision: rules", code_to_long=400, short_qa_to_short=20)
    assert points["code/long"].ruled == "speculative"
    assert points["short_qa/short"].ruled == "plain"
    points = await _points("margin: 0, minOutputTokens: 300", code_to_long=200, summarization_to_long=400)
    assert "fewer than 300" in points["code/long"].why
    assert points["summarization/long"].ruled == ""


async def test_a_class_that_the_operator_took_back_is_plain_and_one_on_its_way_is_free() -> None:
    standing = Standing(
        classes={
            "code/long": ClassStanding(share=0.0, phase=Phase.ROLLED_BACK, message="acceptance fell"),
            "open_chat/long": ClassStanding(share=0.05, phase=Phase.PROGRESSING),
        },
        initial=ClassStanding(share=1.0, phase=Phase.PROMOTED),
    )
    points = await _points(
        "margin: 0", standing=standing, code_to_long=400, open_chat_to_long=400, rewriting_to_long=400
    )
    assert points["code/long"].ruled == "plain"
    assert "acceptance fell" in points["code/long"].why
    assert points["open_chat/long"].ruled == points["rewriting/long"].ruled == ""
