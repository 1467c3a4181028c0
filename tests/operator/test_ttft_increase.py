"""`ttftIncrease`: first tokens that come later than the control's of the same time."""

from __future__ import annotations

from typing import Any

import pytest
from slipstream_core.manifest.status import Phase
from slipstream_core.types import Arm

from tests.operator.policy_world import CODE, World, observation, promoted


def stream(world: World, count: int, *, fast_s: float, slow_s: float, **more: Any) -> None:
    """Streamed answers of both arms: the speculative ones are done in half the time, whenever they begin."""
    begin = world.now.timestamp()
    for index in range(count):
        time_s = begin + 60.0 * (index + 1) / count
        load = 1.0 + (index % 50) / 25.0
        for arm, ttft_s, e2e_s in ((Arm.SPECULATIVE, fast_s, 3.0), (Arm.CONTROL, slow_s, 6.0)):
            noise = load * world.random.uniform(0.8, 1.2)
            seen = {"ttft_s": ttft_s * noise, "e2e_s": e2e_s * noise, **more}
            world.tell(observation(CODE, arm, time_s=time_s, **seen))
    world.look(after_s=60.0)


def test_class_whose_first_tokens_come_later_is_taken_back_though_its_answers_are_faster() -> None:
    world = promoted(count=300, thresholds={"ttftIncrease": 0.2})
    stream(world, 400, fast_s=0.7, slow_s=0.5)
    assert world.of().phase is Phase.ROLLED_BACK
    assert world.condition("RolledBack").reason == "TtftSlowerThanControl"
    decision = world.of().last_decision
    assert (decision.rule, decision.metric, decision.threshold) == ("TtftControlGuard", "ttftChange", 0.2)
    assert decision.observed == pytest.approx(0.4, abs=0.06)
    assert decision.message.startswith("the first tokens of speculative answers take +")


@pytest.mark.parametrize(
    ("thresholds", "fast_s"),
    [({}, 2.0), ({"ttftIncrease": 0.2}, 0.5), ({"ttftIncrease": 0.2}, 0.55), ({"ttftIncrease": 1.0}, 0.8)],
)
def test_class_is_kept_within_its_threshold_and_without_one(thresholds: dict[str, float], fast_s: float) -> None:
    world = promoted(count=300, thresholds=thresholds)
    for _ in range(3):
        stream(world, 400, fast_s=fast_s, slow_s=0.5)
    assert world.of().phase is Phase.PROMOTED


def test_answers_that_were_not_streamed_say_nothing_of_first_tokens() -> None:
    world = promoted(count=300, thresholds={"ttftIncrease": 0.0})
    stream(world, 400, fast_s=0.7, slow_s=0.5, ttft_s=None)
    assert world.of().phase is Phase.PROMOTED


def test_comparison_goes_on_over_a_restart_and_a_retry_is_held_to_less() -> None:
    calm, rough = (promoted(count=300, thresholds={"ttftIncrease": 0.2}) for _ in range(2))
    while calm.of().phase is Phase.PROMOTED:
        for world in (calm, rough):
            stream(world, 30, fast_s=0.7, slow_s=0.5)
        rough.restart()
        rough.look()
    assert calm.of().phase is rough.of().phase is Phase.ROLLED_BACK
    assert calm.of().last_decision == rough.of().last_decision
    calm.look(after_s=601.0)
    assert calm.of().phase is Phase.PROGRESSING
    stream(calm, 400, fast_s=0.7, slow_s=0.5)
    assert calm.of().last_decision.threshold == 0.19
