"""What an OpenAI-compatible server says of speculation, in whatever detail it does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from slipstream_gateway.upstreams.base import Usage
from slipstream_gateway.upstreams.openai_wire import read_body_usage, take_usage

DETAILS = {"accepted_prediction_tokens": 8, "rejected_prediction_tokens": 4}
SLIPSTREAM = {"draft_length": 4, "target_steps": 3, "rejected_at": [0, 1, 1, 0]}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (0, 0, 0, ())),
        ({"completion_tokens_details": None}, (0, 0, 0, ())),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, (0, 0, 0, ())),
        ({"completion_tokens_details": DETAILS}, (12, 8, 0, ())),
        ({"completion_tokens_details": DETAILS, "slipstream": SLIPSTREAM}, (12, 8, 3, (0, 1, 1, 0))),
        ({"completion_tokens_details": DETAILS, "slipstream": None}, (12, 8, 0, ())),
    ],
)
def test_usage_is_read_from_bodies_and_from_streams(more: dict[str, Any], expected: tuple[Any, ...]) -> None:
    wire = {"usage": {"prompt_tokens": 5, "completion_tokens": 11, **more}}
    whole = read_body_usage(json.dumps(wire).encode())
    streamed = Usage(exact=False)
    event = b"data: " + json.dumps({"choices": [], **wire}).encode() + b"\n\n"
    assert take_usage(event, streamed, keep=False) == b""
    assert whole == streamed
    assert (whole.drafted, whole.accepted, whole.steps, whole.rejected_at) == expected
    assert (whole.prompt_tokens, whole.output_tokens, whole.exact) == (5, 11, True)
