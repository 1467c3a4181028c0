"""The embedded engine's application for a host such as the pipe inside Triton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from slipstream_engine.openai.app import create_app
from slipstream_engine.serving.service import EngineService
from slipstream_engine.settings import EngineSettings, settings_from_text


@asynccontextmanager
async def application(name: str, parameters: Mapping[str, str]) -> AsyncIterator[Starlette]:
    """The application that serves the engine of `parameters` as the model `name`. Raises `CheckpointError`."""
    engine = EngineService.start(settings_from_text(parameters, EngineSettings))
    try:
        yield create_app(engine, model=name)
    finally:
        await asyncio.to_thread(engine.close)
