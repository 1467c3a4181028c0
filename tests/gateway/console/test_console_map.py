"""The break-even map says of every point what the routing decision would."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slipstream_gateway.app import connect
from slipstream_gateway.console.map import ACCEPTANCES, LENGTHS, break_even_map
from slipstream_gateway.director.fleet import Fleet
from slipstream_gateway.learning import Learner
from slipstream_gateway.manifest import compile_table, parse
from slipstream_gateway.measurement import Estimate, Forecast, Level
from slipstream_gateway.routing import NO_DRAWS, decide
from slipstream_gateway.settings import GatewaySettings
from slipstream_gateway.types import Arm, Endpoint, GenerationRequest, Message, Reason, RequestProfile, TaskType

MANIFEST = """\
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {{name: pair}}
spec:
  model: acme
  maxDraftTokens: 6
  engine: {{kind: slipstream}}
  target: {{source: "embedded:target"}}
  draft: {{kind: model, source: "embedded:draft"}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {{name: pair}}
spec: {{pair: pair, decision: expected, holdBackShare: 0, explorationShare: 0, {more}}}
"""
REQUEST = GenerationRequest(endpoint=Endpoint.CHAT, model="acme", messages=(Message(role="user", content="Hello."),))
PROFILE = RequestProfile(
    task=TaskType.SUMMARIZATION, expected_output_tokens=80.0, rare_token_share=0.0, structured_output=False,
    prompt_tokens=256, confidence=1.0,
)  # fmt: skip


class _Remembering(Learner):
    """Remembers what it forecast last."""

    last: Forecast

    def forecast(self, *args: Any, **options: Any) -> Forecast:
        self.last = super().forecast(*args, **options)
        return self.last


def _sure(value: float) -> Estimate:
    return Estimate(mean=value, se=0.0, samples=1.0, level=Level.FINGERPRINT)


@pytest.mark.parametrize("more", ["margin: 0", "margin: 0.2", "margin: 0.05, draftTokens: 2"])
async def test_a_point_pays_exactly_where_a_request_with_its_figures_would_speculate(more: str) -> None:
    settings = GatewaySettings(manifest=Path())
    fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
    fleet.swap(compile_table(parse(MANIFEST.format(more=more)), local_endpoints=("grpc://127.0.0.1:9",)))
    (served,) = fleet.current.routes.values()
    learner = _Remembering()
    found = break_even_map(served, learner, ())
    assert not found.unknown
    arms = set()
    for row, acceptance in zip(found.saved, ACCEPTANCES, strict=True):
        for saved, tokens in zip(row, LENGTHS, strict=True):
            known = msgspec.structs.replace(learner.last, output_tokens=_sure(tokens), acceptance=_sure(acceptance))
            decision = decide(REQUEST, PROFILE, served.route, forecast=known, draws=NO_DRAWS)
            assert decision.reason in (Reason.SPECULATION_PAYS, Reason.BREAK_EVEN)
            if abs(saved - found.margin) > 0.0005:  # shares are rounded to a thousandth
                assert (decision.arm is Arm.SPECULATIVE) == (saved > found.margin), (tokens, acceptance)
                arms.add(decision.arm)
    assert arms == {Arm.SPECULATIVE, Arm.PLAIN}
    await fleet.aclose()
