"""Turns drafting off for requests that are still being rendered when `stop_drafting` is called.

An OpenAI request reaches the scheduler after its prompt is rendered, so a later control message may arrive first. Such
a request is submitted with draft length 0.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.async_llm import AsyncLLM

DRAFT_LENGTH = "slipstream_draft_length"  # the plugin's, among a request's extra arguments
STOPS_AT_ARRIVAL: ContextVar[int | None] = ContextVar("stops_at_arrival", default=None)
"""Number of `stop_drafting` calls when the request of this context arrived; None if the caller has compared it."""


def install(llm: AsyncLLM, stops: Callable[[], int]) -> None:
    """Compare `stops()` with `STOPS_AT_ARRIVAL` whenever `llm` submits a request to its scheduler."""
    core = llm.engine_core
    submit = core.add_request_async

    async def submit_with_length(request: EngineCoreRequest) -> None:
        seen, params = STOPS_AT_ARRIVAL.get(), request.sampling_params
        if params is not None and seen is not None and seen != stops():
            params.extra_args = {**(params.extra_args or {}), DRAFT_LENGTH: 0}
        await submit(request)

    core.add_request_async = submit_with_length
