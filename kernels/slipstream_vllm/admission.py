"""Validation of `vllm_xargs` in the process that accepts the request, before the engine sees it.

A server calls `generate` before it answers, also for streams, so an error there becomes HTTP 400 instead of a broken
stream. The Responses API calls `generate` within its stream, so its own generator is checked as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from vllm.sampling_params import SamplingParams

from slipstream_vllm import compatibility
from slipstream_vllm.class_file import ClassFile
from slipstream_vllm.classes import ENDPOINTS, Traits
from slipstream_vllm.draft_length import (
    CLASS_KEY,
    check_keys,
    requested_adaptive,
    requested_class,
    requested_length,
    requested_protection,
)
from slipstream_vllm.errors import BadRequest
from slipstream_vllm.hooks import wrap
from slipstream_vllm.resumption import continued

_REQUESTS = (  # the first three: in the order of ENDPOINTS
    ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
    ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
    ("vllm.entrypoints.openai.responses.protocol", "ResponsesRequest"),
    ("vllm.entrypoints.anthropic.protocol", "AnthropicMessagesRequest"),
    ("vllm.entrypoints.speech_to_text.transcription.protocol", "TranscriptionRequest"),
    ("vllm.entrypoints.speech_to_text.translation.protocol", "TranslationRequest"),
)
_XARGS = dict[str, bool | str | int | float | list[str | int | float]] | None


def install() -> None:
    """Check every request that `AsyncLLM` or `LLM` accepts."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor

    wrap(AsyncLLM, "generate", _checked_generate)
    wrap(InputProcessor, "process_inputs", _checked_process_inputs)


def keep_booleans() -> None:
    """Keep `true` in `vllm_xargs` a boolean, so that it is rejected. With vLLM's field type, pydantic converts it to 1.

    Must run before vLLM registers its routes. Only an API server has loaded these modules.
    """
    for module, name in _REQUESTS:
        model = getattr(sys.modules.get(module), name, None)
        if model is not None:
            model.model_fields["vllm_xargs"].annotation = _XARGS
            model.__annotations__["vllm_xargs"] = _XARGS
            model.model_rebuild(force=True)


def install_responses() -> None:
    """Check requests of the Responses API before their stream starts. Only an API server imports these classes."""
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses

    wrap(OpenAIServingResponses, "_generate_with_builtin_tools", _checked_responses)


def install_rules(file: ClassFile) -> None:
    """Give requests without a class the one of the first rule in `file` that matches."""
    for (module, name), endpoint in zip(_REQUESTS, ENDPOINTS, strict=False):
        wrap(getattr(import_module(module), name), "to_sampling_params", _classified(file, endpoint))


def check_request(vllm_config: Any, params: object) -> None:
    """Raises: `BadRequest`, which names the field and its value."""
    if not isinstance(params, SamplingParams) or not compatibility.serves(vllm_config):
        return
    if params.logprob_token_ids and vllm_config.num_speculative_tokens:
        raise BadRequest(
            f"logprob_token_ids is {params.logprob_token_ids!r}; vLLM omits these log-probabilities in steps with "
            "drafts: use a server without speculation.",
            parameter="logprob_token_ids",
        )
    if params.extra_args:
        check_keys(params.extra_args)
        requested_length(params.extra_args, vllm_config.num_speculative_tokens)
        requested_adaptive(params.extra_args)
        requested_protection(params.extra_args)
        requested_class(params.extra_args)


def _continued(owner: Any, prompt: Any, params: object) -> Any:
    """The prompt with the tokens of an answer that is resumed. `owner` has vLLM's configuration and renderer."""
    if not isinstance(params, SamplingParams) or not compatibility.serves(owner.vllm_config):
        return prompt
    return continued(prompt, params.extra_args, owner.renderer.tokenizer)


def _classified(file: ClassFile, endpoint: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def classified(to_params: Callable[..., Any]) -> Callable[..., Any]:
        def to_classified_params(self: Any, *args: Any, **kwargs: Any) -> Any:
            params = to_params(self, *args, **kwargs)
            own = params.extra_args or {}
            classes = file.current()
            if own.get(CLASS_KEY) is None and (label := classes.label(_traits(self, params, endpoint))):
                params.extra_args = {**own, CLASS_KEY: label}
            return params

        return to_classified_params

    return classified


def _traits(request: Any, params: Any, endpoint: str) -> Traits:
    return Traits(
        endpoint=endpoint,
        model=request.model,
        max_tokens=params.max_tokens,
        tools=bool(getattr(request, "tools", None)),
        response_format=params.structured_outputs is not None,
    )


def _checked_generate(generate: Callable[..., Any]) -> Callable[..., Any]:
    # Not a generator itself, so that it raises when called instead of when the first output is awaited.
    def checked_generate(self: Any, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        check_request(self.vllm_config, sampling_params)
        _continued(self, prompt, sampling_params)
        return generate(self, prompt, sampling_params, *args, **kwargs)

    return checked_generate


def _checked_process_inputs(process_inputs: Callable[..., Any]) -> Callable[..., Any]:
    def checked_process_inputs(self: Any, request_id: Any, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        check_request(self.vllm_config, params)
        prompt = _continued(self, prompt, params)
        return process_inputs(self, request_id, prompt, params, *args, **kwargs)

    return checked_process_inputs


def _checked_responses(generate: Callable[..., Any]) -> Callable[..., Any]:
    def checked_responses(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_request(self.engine_client.vllm_config, kwargs.get("sampling_params"))
        return generate(self, *args, **kwargs)

    return checked_responses
