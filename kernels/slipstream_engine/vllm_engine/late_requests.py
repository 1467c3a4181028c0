"""Turns drafting off for requests that vLLM still renders when a client calls `POST /slipstream/stop_drafting`.

A request reaches the scheduler after its prompt is rendered, so a later stop may arrive first. Such a request is
submitted with draft length 0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.async_llm import AsyncLLM

_DRAFT_LENGTH = "slipstream_draft_length"  # the plugin's, among a request's extra arguments
_STOP_PATH = "/slipstream/stop_drafting"
_stops_at_arrival: ContextVar[int] = ContextVar("stops_at_arrival")
"""Number of stops when the request of this context arrived."""


class LateRequests:
    """The ASGI application `app` of `llm`, which counts stops in the order of their arrival among requests."""

    def __init__(self, llm: AsyncLLM, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._stops = 0
        core = llm.engine_core
        self._submit = core.add_request_async
        core.add_request_async = self._submit_with_length

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == _STOP_PATH and scope["method"] == "POST":
            self._stops += 1
        _stops_at_arrival.set(self._stops)
        await self._app(scope, receive, send)

    async def _submit_with_length(self, request: EngineCoreRequest) -> None:
        params = request.sampling_params
        if params is not None and _stops_at_arrival.get(self._stops) != self._stops:
            params.extra_args = {**(params.extra_args or {}), _DRAFT_LENGTH: 0}
        await self._submit(request)
