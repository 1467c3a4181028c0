"""Which servers the plugin supports. Checked when vLLM has built its configuration, before weights are loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import vllm

from slipstream_vllm import Scheduler, settings
from slipstream_vllm.errors import UnsupportedServerError

# The scheduler's interface is not public: each of these ran the plugin's tests.
TESTED_VERSIONS = ("0.32.0",)

# Everything that the plugin subclasses, wraps or calls, as module and attribute path.
_HOOKS = (
    ("vllm.engine.arg_utils", "EngineArgs.create_engine_config"),
    ("vllm.plugins", "load_endpoint_plugins"),
    ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler._update_after_schedule"),
    ("vllm.v1.core.sched.scheduler", "Scheduler.add_request"),
    ("vllm.v1.core.sched.scheduler", "Scheduler.make_spec_decoding_stats"),
    ("vllm.v1.core.sched.scheduler", "Scheduler.make_stats"),
    ("vllm.v1.core.sched.scheduler", "Scheduler.schedule"),
    ("vllm.v1.engine.async_llm", "AsyncLLM.generate"),
    ("vllm.v1.engine.core", "EngineCore.post_step"),
    ("vllm.v1.engine.input_processor", "InputProcessor.process_inputs"),
    ("vllm.v1.metrics.loggers", "StatLoggerManager.record"),
    ("vllm.v1.worker.worker_base", "WorkerWrapperBase.init_device"),
)


def serves(vllm_config: Any) -> bool:
    """Whether the configuration names the plugin's scheduler; without it, every hook of the plugin is inert."""
    named = vllm_config.scheduler_config.scheduler_cls
    return named is Scheduler or named == f"{Scheduler.__module__}.{Scheduler.__qualname__}"


def vllm_version() -> str:
    """The release of vLLM, without a local part such as `+cpu`."""
    release: str = vllm.__version__.partition("+")[0]
    return release


def check_version() -> None:
    """Raises: `UnsupportedServerError` where this release of vLLM was not tested with the plugin."""
    if vllm_version() not in TESTED_VERSIONS:
        tested = ", ".join(TESTED_VERSIONS)
        raise UnsupportedServerError(
            f"slipstream-vllm was tested with vLLM {tested}, not with {vllm_version()}: "
            "install one of these, or start the server without --scheduler-cls slipstream_vllm.Scheduler."
        )


def check_configuration(vllm_config: Any) -> None:
    """Raises: `UnsupportedServerError` with one sentence where the plugin cannot run with this configuration."""
    check_version()
    parallel = vllm_config.parallel_config
    model = vllm_config.model_config
    if parallel.data_parallel_size > 1 and model is not None and model.is_moe:
        raise UnsupportedServerError(
            f"slipstream-vllm does not support data_parallel_size {parallel.data_parallel_size} with a model of the "
            "mixture-of-experts kind: ranks that draft different numbers deadlock; set --data-parallel-size 1."
        )
    if settings.acceptance() == "equality" and vllm_config.use_v2_model_runner:
        raise UnsupportedServerError(
            f"{settings.ACCEPTANCE_VARIABLE}=equality needs vLLM's V1 model runner: set VLLM_USE_V2_MODEL_RUNNER=0, or "
            f"{settings.ACCEPTANCE_VARIABLE}=rejection."
        )
    missing = [f"{module}.{path}" for module, path in _HOOKS if not _exists(module, path)]
    if missing:
        raise UnsupportedServerError(
            f"slipstream-vllm cannot run: vLLM {vllm.__version__} lacks {', '.join(missing)}; install a stock vLLM."
        )


def _exists(module: str, path: str) -> bool:
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return False
    return True
