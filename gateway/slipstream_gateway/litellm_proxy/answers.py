"""What LiteLLM reports of an answer, as the gateway's own values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from slipstream_gateway.request.observations import Times
from slipstream_gateway.upstreams.base import Usage
from slipstream_gateway.upstreams.engine_wire import read_counts


def usage_of(response: Any, *, draft_length: int) -> Usage:
    """The cost of the answer in `response`, LiteLLM's object of a whole answer or of a stream's chunks.

    LiteLLM keeps vLLM's `metrics` of whole answers, and of streams only the `usage`, where the plugin repeats the
    drafts in OpenAI's fields.
    """
    reported = response.usage
    usage = Usage(
        prompt_tokens=reported.prompt_tokens or 0,
        output_tokens=reported.completion_tokens or 0,
        exact=bool(reported.completion_tokens),
        counted=draft_length == 0,
    )
    counts = read_counts(msgspec.json.encode({"metrics": getattr(response, "metrics", None)}))
    if counts is not None:
        counts.fill(usage, output_tokens=usage.output_tokens, draft_length=draft_length, choices=1)
        return usage
    details = getattr(reported, "completion_tokens_details", None)
    accepted = getattr(details, "accepted_prediction_tokens", None)
    rejected = getattr(details, "rejected_prediction_tokens", None)
    if accepted is not None and rejected is not None:
        usage.accepted, usage.drafted, usage.counted = accepted, accepted + rejected, True
        usage.steps = max(usage.output_tokens - 1 - accepted, 0)
    return usage


def times_of(event: Mapping[str, Any], began: datetime, ended: datetime, *, output_tokens: int) -> Times:
    """The times of an answer; that of the first token is known for streams only."""
    first = event.get("completion_start_time") if event.get("stream") else None
    if first is None:
        return Times((ended - began).total_seconds(), None, None)
    after_first_s = (ended - first).total_seconds()
    tpot_s = after_first_s / (output_tokens - 1) if output_tokens > 1 else None
    return Times((ended - began).total_seconds(), (first - began).total_seconds(), tpot_s)


def is_cut(response: Any) -> bool:
    """Whether the answer ended at its length limit."""
    return any(choice.finish_reason == "length" for choice in response.choices)
