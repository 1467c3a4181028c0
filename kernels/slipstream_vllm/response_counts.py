"""Adds `metrics.speculative_decoding` to responses of the Responses API, as in chat and text completions.

vLLM 0.32 has the counts of a response's sequence but omits them from the response. A stream ends with the whole
response in `response.completed`, so one function covers both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream_vllm.hooks import wrap


def install() -> None:
    """Add the counts to every response of one sequence. Only an API server imports these classes."""
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses

    wrap(OpenAIServingResponses, "responses_full_generator", _counted)


def _counted(generate: Callable[..., Any]) -> Callable[..., Any]:
    async def generate_with_counts(
        self: Any, request: Any, sampling_params: Any, result_generator: Any, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        answer = await generate(self, request, sampling_params, result_generator, context, *args, **kwargs)
        add_counts(answer, context)
        return answer

    return generate_with_counts


def add_counts(answer: Any, context: Any) -> None:
    """Set `answer.metrics.speculative_decoding`, except for errors and answers of several turns with tools."""
    from vllm.entrypoints.generate.base.protocol import PerRequestMetrics
    from vllm.entrypoints.generate.base.serving import build_spec_decoding_metrics
    from vllm.entrypoints.openai.responses.context import SimpleContext
    from vllm.entrypoints.openai.responses.protocol import ResponsesResponse

    if not isinstance(answer, ResponsesResponse) or not isinstance(context, SimpleContext):
        return
    counts = build_spec_decoding_metrics(context.last_output)
    if counts is not None:
        answer.metrics = answer.metrics or PerRequestMetrics()
        answer.metrics.speculative_decoding = counts
