"""vLLM's engine with the endpoints of its OpenAI server, built as in `vllm serve`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from slipstream_engine.errors import CheckpointError

SCHEDULER = "slipstream_vllm.Scheduler"


@asynccontextmanager
async def running_engine(arguments: Sequence[str]) -> AsyncIterator[tuple[AsyncLLM, Any]]:
    """The running engine and its ASGI application. Leaving the context shuts both down.

    Raises:
        CheckpointError: vLLM rejects an option, or it would speculate without the plugin's scheduler.
    """
    options = _parse(arguments)
    llm = _start(AsyncEngineArgs.from_cli_args(options))
    try:
        tasks = await llm.get_supported_tasks()
        app = build_app(options, tasks, llm.model_config)
        await init_app_state(llm, app.state, options, tasks)
        app.state.server = SimpleNamespace(should_exit=False)  # set when the engine ends; no server listens here
        # The application's lifespan logs the statistics of each interval and resets them. Without it they would grow.
        async with app.router.lifespan_context(app):
            yield llm, app
    finally:
        llm.shutdown()


def _start(arguments: AsyncEngineArgs) -> AsyncLLM:
    """Start the engine as vLLM's own server does."""
    context = UsageContext.OPENAI_API_SERVER
    config = arguments.create_engine_config(context)
    scheduler = config.scheduler_config.scheduler_cls
    if config.speculative_config is not None and scheduler != SCHEDULER:  # before weights are loaded
        given = "not set" if scheduler is None else repr(scheduler)
        raise CheckpointError(
            f"vllm_args: an engine that speculates needs --scheduler-cls {SCHEDULER}, which is {given}"
        )
    return AsyncLLM.from_vllm_config(
        config,
        usage_context=context,
        enable_log_requests=arguments.enable_log_requests,
        aggregate_engine_logging=arguments.aggregate_engine_logging,
        disable_log_stats=arguments.disable_log_stats,
    )


def _parse(arguments: Sequence[str]) -> Any:
    parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False))

    def refuse(message: str) -> None:
        raise CheckpointError(f"vllm_args: {message}")

    parser.error = refuse  # the default ends the process
    options = parser.parse_args(list(arguments))
    validate_parsed_serve_args(options)
    options.api_key = None  # Triton controls access; its requests carry no key
    return options
