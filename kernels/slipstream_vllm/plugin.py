"""The entry point `vllm.general_plugins`: vLLM calls `register` in the API server, the engine and each worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.logger import init_logger

from slipstream_vllm import admission, compatibility, settings, watchdog
from slipstream_vllm.errors import UnsupportedServerError
from slipstream_vllm.hooks import is_wrapped, wrap

logger = init_logger(f"vllm.{__name__}")


def register() -> None:
    """Install the hooks of the plugin in this process. A second call does nothing.

    Every hook checks the configuration first: without `--scheduler-cls slipstream_vllm.Scheduler` nothing changes.
    On an untested release, or a build without one of the hooked functions, only the check is installed, which prevents
    such a server from starting with the plugin.
    """
    from vllm.engine.arg_utils import EngineArgs

    wrap(EngineArgs, "create_engine_config", _checked)
    if compatibility.vllm_version() not in compatibility.TESTED_VERSIONS:
        return
    if compatibility.missing(compatibility.COMMON_HOOKS):
        return
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from slipstream_vllm import control, counters, draft_passes, engine_time, resumption, routes

    for module in (admission, control, counters, engine_time, resumption, routes):
        module.install()
    draft_passes.install_in_engine()
    wrap(WorkerWrapperBase, "init_device", _with_worker_hooks)


def is_registered() -> bool:
    """Whether `register` ran in this process."""
    from vllm.engine.arg_utils import EngineArgs

    return is_wrapped(EngineArgs, "create_engine_config")


def _checked(create_engine_config: Callable[..., Any]) -> Callable[..., Any]:
    def create_checked_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        vllm_config = create_engine_config(self, *args, **kwargs)
        if compatibility.serves(vllm_config):
            try:
                settings.fix_acceptance(vllm_config)
                compatibility.check_configuration(vllm_config)
                compatibility.check_hooks(vllm_config)
                settings.class_file(vllm_config)
            except UnsupportedServerError as error:
                logger.error("%s", error)
                raise
            for warning in compatibility.warnings(vllm_config):
                logger.warning("%s", warning)
            _report_counts_per_request(vllm_config)
            admission.keep_booleans()
        return vllm_config

    return create_checked_engine_config


def _with_worker_hooks(init_device: Callable[..., Any]) -> Callable[..., Any]:
    # Not `init_worker`, which loads this plugin in a spawned worker. The model runner is a heavy import that only
    # workers need.
    def init_device_with_hooks(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compatibility.serves(self.vllm_config):
            _install_in_worker(self.vllm_config)
            watchdog.install_in_engine()
        return init_device(self, *args, **kwargs)

    return init_device_with_hooks


def _install_in_worker(vllm_config: Any) -> None:
    """Install the hooks of the model runner that this worker builds."""
    if vllm_config.use_v2_model_runner:
        if settings.extends_v2():
            from slipstream_vllm import acceptance_v2

            acceptance_v2.install_in_worker()
        if settings.skips_draft_passes():
            from slipstream_vllm import draft_passes_v2

            draft_passes_v2.install_in_worker()
        if settings.is_hybrid(vllm_config):
            from slipstream_vllm import hybrid_v2

            hybrid_v2.install_in_worker()
        return
    from slipstream_vllm import acceptance, draft_passes, no_drafts, seeds

    for module in (draft_passes, acceptance, no_drafts, seeds):
        module.install_in_worker()


def _report_counts_per_request(vllm_config: Any) -> None:
    """Add `metrics.speculative_decoding` to responses, as with `--per-request-spec-decode-metrics summary`."""
    observability = vllm_config.observability_config
    if vllm_config.speculative_config is not None and observability.per_request_spec_decode_metrics == "none":
        observability.per_request_spec_decode_metrics = "summary"
