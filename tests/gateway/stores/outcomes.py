"""Outcomes for the stores' tests."""

from __future__ import annotations

from typing import Any

from slipstream_core.observation import Observation, Subject
from slipstream_core.types import Arm, Reason


def observation(number: int, *, pair: str = "acme", **more: Any) -> Observation:
    """An outcome whose number stands in `prompt_tokens`."""
    subject = Subject(
        pair=pair,
        cold_class="summarization/long",
        temperature=0,
    )
    fields: dict[str, Any] = {
        "subject": subject,
        "request_class": "summarization/long",
        "arm": Arm.SPECULATIVE,
        "reason": Reason.SPECULATION_PAYS,
        "draft_length": 5,
        "pool": "http://127.0.0.1:8000",
        "status": "ok",
        "prompt_tokens": number,
        "output_tokens": 200,
        "drafted": 180,
        "accepted": 140,
        "rejections": 20,
        "steps": 60,
        "ttft_s": 0.03,
        "e2e_s": 1.33,
        "load": 3.2,
        "batch_draft_length": 3.3,
        "price_per_gpu_hour": 2.5,
        "time_s": 1.7e9,
    }
    return Observation(**{**fields, **more})
