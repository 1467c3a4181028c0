"""vLLM itself: its engine with the endpoints of its OpenAI server, built as `vllm serve` builds them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from slipstream_engine.errors import CheckpointError

VERSION: str = vllm.__version__


async def load(arguments: Sequence[str]) -> tuple[AsyncLLM, Any]:
    """The running engine and the ASGI application over it.

    Raises:
        CheckpointError: vLLM refuses an option.
    """
    options = _parse(arguments)
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(options))
    try:
        tasks = await llm.get_supported_tasks()
        app = build_app(options, tasks, llm.model_config)
        await init_app_state(llm, app.state, options, tasks)
        app.state.server = SimpleNamespace(should_exit=False)  # which it ends with its engine: here, nothing listens
    except BaseException:
        llm.shutdown()
        raise
    return llm, app


def _parse(arguments: Sequence[str]) -> Any:
    parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False))

    def refuse(message: str) -> None:
        raise CheckpointError(f"vllm_args: {message}")

    parser.error = refuse  # by itself, it ends the process
    options = parser.parse_args(list(arguments))
    validate_parsed_serve_args(options)
    return options
