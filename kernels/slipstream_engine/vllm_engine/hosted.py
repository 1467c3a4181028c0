"""vLLM's server as an application for a host such as the pipe inside Triton, with the plugin's routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from slipstream_engine.settings import settings_from_text
from slipstream_engine.vllm_engine.compatibility import check_version
from slipstream_engine.vllm_engine.late_requests import LateRequests
from slipstream_engine.vllm_engine.process import lower_priority, prepare_process
from slipstream_engine.vllm_engine.settings import VllmSettings, command_line


@asynccontextmanager
async def application(name: str, parameters: Mapping[str, str]) -> AsyncIterator[Any]:
    """vLLM's application, which serves the model `name`. Raises `CheckpointError`."""
    settings = settings_from_text(parameters, VllmSettings)
    lower_priority(settings.nice)
    prepare_process()
    check_version()
    from slipstream_engine.vllm_engine.engine import running_engine  # imports vLLM, after `prepare_process`

    async with running_engine(command_line(settings, name)) as (llm, app):
        yield LateRequests(llm, app)
