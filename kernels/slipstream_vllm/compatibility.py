"""Servers that the plugin supports, checked after vLLM has built its configuration and before weights are loaded."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import vllm

from slipstream_vllm import Scheduler, settings
from slipstream_vllm.errors import UnsupportedServerError

# The scheduler's interface is not public. The plugin's tests passed with these releases.
TESTED_VERSIONS = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")

# Values of vLLM's `rejection_sample_method` that change answers; vLLM 0.33 added `fly`.
LOSSY_METHODS = ("fly", "synthetic")

# Drafting methods beside which `slipstream_hybrid` was tested.
HYBRID_METHODS = ("draft_model", "eagle")

Hook = tuple[str, str]
"""Module and attribute path of an object that the plugin subclasses, wraps or calls."""

# Objects that `plugin.register` wraps in every process, also in servers that do not use the plugin.
COMMON_HOOKS: tuple[Hook, ...] = (
    ("vllm.engine.arg_utils", "EngineArgs.create_engine_config"),
    ("vllm.plugins", "load_endpoint_plugins"),
    ("vllm.v1.engine.async_llm", "AsyncLLM.generate"),
    ("vllm.v1.engine.core", "EngineCore.post_step"),
    ("vllm.v1.engine.detokenizer", "FastIncrementalDetokenizer.__init__"),
    ("vllm.v1.engine.input_processor", "InputProcessor.process_inputs"),
    ("vllm.v1.metrics.loggers", "StatLoggerManager.record"),
    ("vllm.v1.metrics.stats", "RequestSpecDecodeMetrics.to_dict"),
    ("vllm.v1.worker.worker_base", "WorkerWrapperBase.init_device"),
)
# Further objects for a server with the plugin's scheduler. Each import is heavy.
SERVER_HOOKS: tuple[Hook, ...] = (
    ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest.to_sampling_params"),
    ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionResponse"),
    ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionStreamResponse"),
    ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest.to_sampling_params"),
    ("vllm.entrypoints.openai.completion.protocol", "CompletionResponse"),
    ("vllm.entrypoints.openai.completion.protocol", "CompletionStreamResponse"),
    ("vllm.entrypoints.openai.responses.protocol", "ResponsesRequest.to_sampling_params"),
    ("vllm.entrypoints.openai.responses.serving", "OpenAIServingResponses._generate_with_builtin_tools"),
    ("vllm.entrypoints.openai.responses.serving", "OpenAIServingResponses.responses_full_generator"),
    ("vllm.entrypoints.serve.engine.protocol", "CompletionTokenUsageInfo"),
    ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler._update_after_schedule"),
    ("vllm.v1.core.sched.scheduler", "Scheduler._update_after_schedule"),
    ("vllm.v1.core.sched.scheduler", "Scheduler.add_request"),
    ("vllm.v1.core.sched.scheduler", "Scheduler.make_spec_decoding_stats"),
    ("vllm.v1.core.sched.scheduler", "Scheduler.schedule"),
    ("vllm.v1.core.sched.scheduler", "Scheduler.update_from_output"),
)
# Further objects for the V1 model runner.
V1_HOOKS: tuple[Hook, ...] = (
    ("vllm.v1.sample.rejection_sampler", "RejectionSampler._get_logprobs_tensors"),
    ("vllm.v1.sample.rejection_sampler", "RejectionSampler.apply_logits_processors"),
    ("vllm.v1.sample.sampler", "Sampler.sample"),
    ("vllm.v1.sample.thinking_budget_state", "ThinkingBudgetStateHolder.apply_to_logits"),
    ("vllm.v1.sample.thinking_budget_state", "ThinkingBudgetStateHolder.has_tracked_requests"),
    ("vllm.v1.sample.thinking_budget_state", "ThinkingBudgetStateHolder.update_state"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._bookkeeping_sync"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._calc_spec_decode_metadata"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._sample"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._update_states"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.propose_draft_token_ids"),
)
# Further objects for the V2 model runner.
V2_HOOKS: tuple[Hook, ...] = (
    ("vllm.v1.worker.gpu.async_utils", "async_copy_to_np"),
    ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner.execute_model"),
    ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner.load_model"),
    ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner.sample_tokens"),
    ("vllm.v1.worker.gpu.sample.sampler", "Sampler.sample"),
    ("vllm.v1.worker.gpu.spec_decode.ngram.speculator", "NgramGPUSpeculator.propose"),
    ("vllm.v1.worker.gpu.spec_decode.ngram.speculator", "_ngram_scan_kernel"),
    ("vllm.v1.worker.gpu.spec_decode.rejection_sampler", "RejectionSampler._verify"),
    ("vllm.v1.worker.gpu.spec_decode.speculator", "DraftModelSpeculator._build_attn_metadata"),
    ("vllm.v1.worker.gpu.spec_decode.speculator", "DraftModelSpeculator.sample_draft"),
    ("vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator", "StandaloneARSpeculator._run_model"),
    ("vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator", "StandaloneARSpeculator.propose"),
    ("vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator", "TargetDependentARSpeculator.propose"),
)


def names_scheduler(scheduler_cls: object) -> bool:
    """Whether this value of `--scheduler-cls` is the plugin's scheduler."""
    return scheduler_cls is Scheduler or scheduler_cls == f"{Scheduler.__module__}.{Scheduler.__qualname__}"


def serves(vllm_config: Any) -> bool:
    """Whether the configuration names the plugin's scheduler; without it, every hook of the plugin is inert."""
    return names_scheduler(vllm_config.scheduler_config.scheduler_cls)


def vllm_version() -> str:
    """The release of vLLM, without a local part such as `+cpu`."""
    release: str = vllm.__version__.partition("+")[0]
    return release


def check_version() -> None:
    """Raises: `UnsupportedServerError` if this release of vLLM was not tested with the plugin."""
    if vllm_version() not in TESTED_VERSIONS:
        tested = ", ".join(TESTED_VERSIONS)
        raise UnsupportedServerError(
            f"slipstream-vllm was tested with vLLM {tested}, not with {vllm_version()}: "
            "install one of these, or start the server without --scheduler-cls slipstream_vllm.Scheduler."
        )


def check_configuration(vllm_config: Any) -> None:
    """Raises: `UnsupportedServerError` with one sentence if the plugin cannot run with this configuration."""
    check_version()
    if settings.uses_rust_frontend():
        raise UnsupportedServerError(
            f"slipstream-vllm does not support {settings.RUST_VARIABLE}=1: that server checks no draft lengths, counts "
            "no drafts by request and has no control routes; unset it."
        )
    _check_ranks(vllm_config)
    _check_stages(vllm_config)
    _check_losslessness(vllm_config)
    if settings.acceptance(vllm_config) == "equality":
        _check_equality(vllm_config)
    if settings.is_hybrid(vllm_config):
        _check_hybrid(vllm_config)


def _check_ranks(vllm_config: Any) -> None:
    """Raises: `UnsupportedServerError` if vLLM itself ends with this drafter where ranks share experts."""
    speculative, model = vllm_config.speculative_config, vllm_config.model_config
    if not settings.ranks_in_step(vllm_config) or speculative is None or not speculative.uses_draft_model():
        return
    if vllm_config.use_v2_model_runner and model is not None and model.is_moe:
        raise UnsupportedServerError(
            f"vLLM {vllm_version()} ends at the first draft of a draft model on its V2 model runner with "
            f"data_parallel_size {vllm_config.parallel_config.data_parallel_size} and a mixture of experts: draft with "
            "a head, or set VLLM_USE_V2_MODEL_RUNNER=0."
        )


def _check_stages(vllm_config: Any) -> None:
    """Raises: `UnsupportedServerError` if vLLM itself ends when it drafts beside the stages of a pipeline.

    On V1 the first stages look for the drafter, which the last stage alone has. On V2 the last stage loads its part of
    a draft model alone, and the first ones of a synchronous engine do not know which drafts they verify.
    """
    speculative, stages = vllm_config.speculative_config, vllm_config.parallel_config.pipeline_parallel_size
    if speculative is None or stages == 1:
        return
    if not vllm_config.use_v2_model_runner:
        drafts, remedy = "drafts on its V1 model runner", "set VLLM_USE_V2_MODEL_RUNNER=1"
    elif speculative.uses_draft_model():
        drafts, remedy = "a draft model", "draft with a head or n-grams"
    elif not vllm_config.scheduler_config.async_scheduling:
        drafts, remedy = "drafts with synchronous scheduling", "remove --no-async-scheduling"
    else:
        return
    raise UnsupportedServerError(
        f"vLLM {vllm_version()} does not support {drafts} with pipeline_parallel_size {stages}: {remedy}, or start the "
        "server without a speculative configuration."
    )


def _check_losslessness(vllm_config: Any) -> None:
    """Raises: `UnsupportedServerError` if answers would not be the target's. A benchmark may accept synthetically."""
    speculative = vllm_config.speculative_config
    method = "standard" if speculative is None else speculative.rejection_sample_method
    if method in LOSSY_METHODS and settings.acceptance(vllm_config) != method:
        raise UnsupportedServerError(
            f"rejection_sample_method {method!r} is lossy: answers would not be the target's; remove it from the "
            "speculative configuration."
        )
    if settings.acceptance(vllm_config) == "synthetic" and method != "synthetic":
        raise UnsupportedServerError(
            f"{settings.ACCEPTANCE_VARIABLE}=synthetic needs rejection_sample_method 'synthetic', not {method!r}."
        )


def _check_equality(vllm_config: Any) -> None:
    """Raises: `UnsupportedServerError` if a setting of vLLM contradicts acceptance by equality."""
    rule = f"{settings.ACCEPTANCE_VARIABLE}=equality"
    speculative = vllm_config.speculative_config
    if speculative is not None and (method := speculative.rejection_sample_method) != "standard":
        raise UnsupportedServerError(
            f"{rule} replaces vLLM's verification, and the speculative configuration has rejection_sample_method "
            f"{method!r}: remove this field, or set {settings.ACCEPTANCE_VARIABLE}=rejection."
        )
    if vllm_config.use_v2_model_runner and not settings.extends_v2():
        raise UnsupportedServerError(
            f"{rule} with vLLM's V2 model runner needs vLLM 0.32 or later, this is {vllm_version()}: set "
            f"VLLM_USE_V2_MODEL_RUNNER=0, or {settings.ACCEPTANCE_VARIABLE}=rejection."
        )
    if getattr(vllm_config, "watermark_config", None) is not None:  # new in vLLM 0.30
        raise UnsupportedServerError(
            f"{rule} does not support watermarks, which depend on the context of each draft token: "
            f"set {settings.ACCEPTANCE_VARIABLE}=rejection."
        )


def _check_hybrid(vllm_config: Any) -> None:
    """Raises: `UnsupportedServerError` if this server cannot verify copies beside its drafter's tokens."""
    speculative = vllm_config.speculative_config
    method = None if speculative is None else speculative.method
    rule = settings.acceptance(vllm_config)
    reason = None
    if method not in HYBRID_METHODS:
        reason = f"needs one of the drafting methods {', '.join(HYBRID_METHODS)}, not {method}"
    elif not vllm_config.use_v2_model_runner or not settings.skips_draft_passes():
        reason = "needs the V2 model runner of vLLM 0.32: set VLLM_USE_V2_MODEL_RUNNER=1 there"
    elif speculative.enable_adaptive_verification:
        reason = "does not support enable_adaptive_verification, which judges the drafter's tokens alone"
    elif rule != "equality":
        reason = f"needs {settings.ACCEPTANCE_VARIABLE}=equality, not {rule}"
    if reason is not None:
        raise UnsupportedServerError(f"additional_config.{settings.HYBRID_KEY} {reason}; or set it to false.")


def warnings(vllm_config: Any) -> list[str]:
    """One sentence about each part of a configuration that works at an avoidable cost."""
    speculative = vllm_config.speculative_config
    if speculative is None or not vllm_config.use_v2_model_runner:
        return []
    found = []
    if speculative.uses_draft_model() and not settings.skips_draft_passes():
        found.append(
            f"slipstream-vllm: the V2 model runner of vLLM {vllm_version()} runs the draft model in full in every "
            "step, so a request with draft length 0 pays for it too; use vLLM 0.32, or set VLLM_USE_V2_MODEL_RUNNER=0."
        )
    mode = vllm_config.compilation_config.cudagraph_mode
    if _loses_full_graphs(mode, speculative):
        rest = "none" if mode.mixed_mode().name == "NONE" else f"a {mode.mixed_mode().name} one"
        found.append(
            f"slipstream-vllm: with cudagraph_mode {mode.name}, a step has a full CUDA graph only if every request "
            f"verifies {speculative.num_speculative_tokens} draft tokens, and {rest} otherwise; for different draft "
            "lengths set cudagraph_mode FULL where the attention backend supports it, or enable_adaptive_verification."
        )
    return found


def _loses_full_graphs(mode: Any, speculative: Any) -> bool:
    """Whether full graphs exist, but for steps of one length alone.

    `separate_routine`: decodes have graphs of their own, which vLLM captures for 1 + num_speculative_tokens rows of
    each request, or, with adaptive verification, for any number of rows.
    """
    is_adaptive = getattr(speculative, "enable_adaptive_verification", False)
    return mode is not None and mode.separate_routine() and mode.has_full_cudagraphs() and not is_adaptive


def check_hooks(vllm_config: Any) -> None:
    """Raises: `UnsupportedServerError` if a vendor's build lacks an object that the plugin uses."""
    of_v2 = V2_HOOKS if settings.extends_v2() else ()
    of_runner = of_v2 if vllm_config.use_v2_model_runner else V1_HOOKS
    lacking = missing((*COMMON_HOOKS, *SERVER_HOOKS, *of_runner))
    if lacking:
        raise UnsupportedServerError(
            f"slipstream-vllm cannot run: vLLM {vllm.__version__} lacks {', '.join(lacking)}; install a stock vLLM, "
            "or start the server without --scheduler-cls slipstream_vllm.Scheduler."
        )


def missing(hooks: Iterable[Hook]) -> list[str]:
    """The names of the hooks that this build of vLLM lacks."""
    return [f"{module}.{path}" for module, path in hooks if not _exists(module, path)]


def _exists(module: str, path: str) -> bool:
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return False
    return True
