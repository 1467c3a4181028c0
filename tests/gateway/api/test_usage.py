"""What an answer's usage says of speculation."""

from __future__ import annotations

import pytest
from slipstream_core.types import choice_seed
from slipstream_gateway.api.render import usage_object
from slipstream_gateway.upstreams.base import Usage


@pytest.mark.parametrize(
    ("counted", "accepted", "rejected", "steps", "rejected_at"),
    [(True, 8, 4, 3, (1, 0)), (False, None, None, None, None)],
)
def test_unknown_counts_are_null(
    counted: bool, accepted: int | None, rejected: int | None, steps: int | None, rejected_at: tuple[int, ...] | None
) -> None:
    usage = Usage(
        prompt_tokens=5,
        output_tokens=11,
        drafted=12,
        accepted=8,
        steps=3,
        rejected_at=(1, 0),
        counted=counted,
        engine_s=0.25 if counted else None,
    )
    told = usage_object(usage, draft_length=4, seed=7)
    assert told["completion_tokens_details"] == {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": rejected,
    }
    assert told["slipstream"] == {
        "seed": 7,
        "draft_length": 4,
        "target_steps": steps,
        "rejected_at": rejected_at,
        "engine_seconds": 0.25 if counted else None,
        "draft": None,
        "resumed": (),
    }
    assert (told["prompt_tokens"], told["completion_tokens"], told["total_tokens"]) == (5, 11, 16)


@pytest.mark.parametrize(("seed", "index", "expected"), [(7, 0, 7), (7, 3, 10), (2**63 - 1, 1, -(2**63)), (-1, 1, 0)])
def test_seeds_of_choices_follow_each_other_and_wrap_round(seed: int, index: int, expected: int) -> None:
    assert choice_seed(seed, index) == expected
