"""Answers that were not streamed: the part before the first token is a guess, and must not become a gain."""

from __future__ import annotations

import random
from typing import Any

import pytest
from slipstream_core.types import Arm, Reason
from slipstream_gateway.decide.estimate import Learner
from slipstream_gateway.decide.route.predicted_saving import predict_saving

from tests.gateway.learning.samples import forecast_for, observe

PLAIN, SPECULATIVE = "p/plain", "p/spec"
ARMS = (Arm.PLAIN, Arm.SPECULATIVE)


class Traffic:
    """Two pools without draft counts. Code gains: 10 ms a token plainly, 5 ms with speculation."""

    def __init__(self) -> None:
        self.learner = Learner()
        self._random = random.Random(1)

    def answer(self, name: str, arm: Arm, tokens: int, per_token_s: float, first_s: float, *, whole: bool) -> None:
        speculates = arm is Arm.SPECULATIVE
        more: dict[str, Any] = {"arm": arm, "pool": SPECULATIVE if speculates else PLAIN, "steps": 0}
        if speculates:
            more |= {"reason": Reason.SPECULATION_PAYS, "draft_length": 4, "batch_draft_length": 4.0}
            more["steps"] = tokens - 1
        first, rest = self._varied(first_s), self._varied((tokens - 1) * per_token_s)
        seen = observe(
            cold_class=name,
            output_tokens=tokens,
            ttft_s=None if whole else first,
            e2e_s=first + rest,
            **more,
        )
        self.learner.record(seen)
        forecast_for(self.learner, seen, plain=PLAIN, speculative=SPECULATIVE)

    def saving_s(self, name: str) -> float:
        asked = observe(cold_class=name)
        found = forecast_for(self.learner, asked, plain=PLAIN, speculative=SPECULATIVE)
        best = predict_saving(found, shortest=4, longest=4)
        assert best is not None
        return best.saving_s

    def _varied(self, seconds: float) -> float:
        return seconds * (1.0 + 0.05 * self._random.gauss(0.0, 1.0))


@pytest.mark.parametrize(("tokens", "first_s"), [(21, 0.5), (41, 0.5), (101, 1.0)])
def test_class_that_loses_is_not_drawn_to_the_pace_of_its_pool(tokens: int, first_s: float) -> None:
    traffic = Traffic()
    for _ in range(200):
        for arm, first, other in zip(ARMS, (0.010, 0.005), (0.010, 0.012), strict=True):
            traffic.answer("code/long", arm, 101, first, first_s, whole=False)
            traffic.answer("open_chat/long", arm, tokens, other, first_s, whole=True)
    truth_s = (tokens - 1) * (0.010 - 0.012)
    assert traffic.saving_s("open_chat/long") == pytest.approx(truth_s, rel=0.4)


def test_time_to_first_token_is_no_gain_where_nothing_was_streamed() -> None:
    traffic = Traffic()
    for _ in range(200):
        for arm, first, other in zip(ARMS, (0.010, 0.005), (0.010, 0.014), strict=True):
            traffic.answer("code/long", arm, 101, first, 0.1, whole=True)
            traffic.answer("open_chat/long", arm, 5, other, 0.1, whole=True)
    assert traffic.saving_s("open_chat/long") < 0.0
    assert traffic.saving_s("code/long") == pytest.approx(0.5, rel=0.25)
