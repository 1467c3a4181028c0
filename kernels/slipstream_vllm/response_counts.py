"""The counts of a request in its response, where vLLM itself leaves them out.

Responses API: vLLM 0.32 has the counts of a response's sequence but omits them from the response. A stream ends with
the whole response in `response.completed`, so one function covers both.

Chat and text completions: vLLM has the counts in `metrics` only, which proxies and clients of OpenAI's protocol drop.
OpenAI's own fields for draft tokens, in `usage.completion_tokens_details`, get them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream_vllm.hooks import wrap


def install() -> None:
    """Add the counts to every response of one sequence. Only an API server imports these classes."""
    from vllm.entrypoints.openai.chat_completion import protocol as chat
    from vllm.entrypoints.openai.completion import protocol as completion
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses

    wrap(OpenAIServingResponses, "responses_full_generator", _counted)
    for model in (chat.ChatCompletionResponse, chat.ChatCompletionStreamResponse):
        wrap(model, "__init__", _with_details)
    for model in (completion.CompletionResponse, completion.CompletionStreamResponse):
        wrap(model, "__init__", _with_details)


def _with_details(construct: Callable[..., None]) -> Callable[..., None]:
    def construct_with_details(self: Any, **fields: Any) -> None:
        construct(self, **fields)
        if fields.get("metrics") is not None:
            add_details(self.usage, self.metrics.speculative_decoding)

    return construct_with_details


def add_details(usage: Any, counts: Any) -> None:
    """Set OpenAI's fields for draft tokens in `usage` to the `counts`, if there are any."""
    from vllm.entrypoints.serve.engine.protocol import CompletionTokenUsageInfo

    if usage is None or counts is None:
        return
    # vLLM has none where no parser finds reasoning. A stream would leave out a number that is not set.
    details = usage.completion_tokens_details or CompletionTokenUsageInfo(reasoning_tokens=0)
    details.accepted_prediction_tokens = counts.num_accepted_draft_tokens
    details.rejected_prediction_tokens = counts.num_draft_tokens - counts.num_accepted_draft_tokens
    usage.completion_tokens_details = details


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
