"""Requests as clients send them, and outcomes as the gateway reports them."""

from __future__ import annotations

from typing import Any

from slipstream_core.observation import Forecast, Observation, Subject
from slipstream_core.types import Arm, Endpoint, GenerationRequest, Message, Reason, RequestProfile, TaskType
from slipstream_gateway.decide.estimate import ForecastQuery, Learner


def chat(text: str, *, system: str | None = None, **fields: Any) -> GenerationRequest:
    """A chat request of one user message, with a system prompt or not."""
    messages = (Message(role="user", content=text),)
    if system is not None:
        messages = (Message(role="system", content=system), *messages)
    return GenerationRequest(**{"endpoint": Endpoint.CHAT, "model": "m", "messages": messages} | fields)


def profile(**fields: Any) -> RequestProfile:
    """What a classifier might say of a call summary."""
    defaults = {
        "task": TaskType.SUMMARIZATION, "expected_output_tokens": 180.0, "rare_token_share": 0.05,
        "structured_output": False, "prompt_tokens": 300, "confidence": 0.9,
    }  # fmt: skip
    return RequestProfile(**defaults | fields)


def observe(**fields: Any) -> Observation:
    """A plain answer of 100 tokens at 20 ms each; fields of the subject count as such."""
    subject = {
        "pair": "p", "cold_class": "summarization/long", "temperature": 0, "key": "",
    }  # fmt: skip
    subject |= {name: fields.pop(name) for name in subject.keys() & fields.keys()}
    defaults = {
        "subject": Subject(**subject), "request_class": subject["cold_class"], "arm": Arm.PLAIN,
        "reason": Reason.BREAK_EVEN, "draft_length": 0, "pool": "pool", "status": "ok", "prompt_tokens": 300,
        "output_tokens": 101, "drafted": 0, "accepted": 0, "rejections": 0, "steps": 100, "ttft_s": 0.1,
        "e2e_s": 2.1, "load": 1.0, "batch_draft_length": 0.0, "price_per_gpu_hour": None, "time_s": 0.0,
    }  # fmt: skip
    return Observation(**defaults | fields)


def forecast_for(
    learner: Learner, seen: Observation, guess: RequestProfile | None = None, *, load: float = 1.0,
    plain: str = "pool", speculative: str | None = "pool", max_tokens: int | None = None,
) -> Forecast:  # fmt: skip
    """A learner's forecast for the subject of `seen`."""
    return learner.forecast(ForecastQuery(
        seen.subject, guess or profile(), plain_pool=plain, speculative_pool=speculative, plain_load=load,
        speculative_load=load, max_tokens=max_tokens,
    ))  # fmt: skip
