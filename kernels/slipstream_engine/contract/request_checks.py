"""Checks of a request without a model."""

from __future__ import annotations

from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.errors import RequestError

MAX_TEMPERATURE = 1e6


def check_request(request: GenerationRequest, *, context_tokens: int, vocabulary: int) -> None:
    """Check `request` as far as possible without a model.

    Raises:
        RequestError: the prompt is empty or fills the context, a token id is unknown, or a number is out of range.
    """
    given = len(request.prompt_ids) + len(request.resume_ids)
    if not request.prompt_ids:
        raise RequestError("expected at least one token, got none")
    if given >= context_tokens:
        resumed = " with resume_ids" if request.resume_ids else ""
        raise RequestError(
            f"the prompt{resumed} has {given} tokens; the context of {context_tokens} tokens must hold it and "
            "at least one token of output",
            code="context_length_exceeded",
        )
    if request.max_tokens <= len(request.resume_ids):
        raise RequestError(
            f"max_tokens is {request.max_tokens}, but resume_ids already hold {len(request.resume_ids)} tokens",
            param="max_tokens",
        )
    if request.draft_tokens < 0:
        raise RequestError(f"draft_tokens must not be negative, got {request.draft_tokens}")
    _check_sampling(request.sampling)
    ids = (*request.prompt_ids, *request.resume_ids)
    if min(ids) < 0 or max(ids) >= vocabulary:
        at, unknown = next((at, token) for at, token in enumerate(ids) if not 0 <= token < vocabulary)
        raise RequestError(f"expected one of the model's {vocabulary} token ids, got {unknown}", token=at)
    for param, tokens in (("logit_bias", request.logit_bias), ("stop_token_ids", request.stop_ids)):
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise RequestError(f"{param} has token id {token}; the vocabulary has {vocabulary} tokens", param=param)
    if request.min_tokens and request.stop:
        raise RequestError("min_tokens with stop strings is not supported; use stop_token_ids", param="min_tokens")


def _check_sampling(sampling: SamplingParams) -> None:
    if not 0 <= sampling.temperature <= MAX_TEMPERATURE:  # also refuses NaN
        raise RequestError(f"temperature must be between 0 and {MAX_TEMPERATURE:g}, got {sampling.temperature}")
    if not 0 <= sampling.top_p <= 1:
        raise RequestError(f"top_p must be between 0 and 1, got {sampling.top_p}")
    if sampling.top_k < 0:
        raise RequestError(f"top_k must not be negative, got {sampling.top_k}")
