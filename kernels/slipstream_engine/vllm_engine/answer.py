"""Converts the outputs of one vLLM request to chunks: text, tokens, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slipstream_engine.contract.types import Chunk, Counts, FinishReason, GenerationRequest
from slipstream_engine.vllm_engine.resumed_text import ResumedText

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput

_FINISH = {
    None: None,
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.CANCELLED,
}
"""vLLM's finish reasons; any other is an error."""

_Drafts = tuple[int, int, int, tuple[int, ...], float | None]
"""Drafted, accepted, steps that drafted, rejections by position, the engine's time in seconds."""


class AnswerWriter:
    """Builds the chunks of one answer. `resumed` is None for an answer that starts from its beginning, which uses
    vLLM's own text.

    If the request `drafts`, vLLM reports the counts of drafts with its last output. They are unknown until then, and
    also at the end of an answer that was cancelled or that `resumed` ended.
    """

    def __init__(self, request: GenerationRequest, resumed: ResumedText | None, *, drafts: bool) -> None:
        self._request = request
        self._resumed = resumed
        self._output_tokens = len(request.resume_ids)
        self._counted = not drafts
        self._drafts: _Drafts = (0, 0, 0, (), None)

    def take(self, output: CompletionOutput) -> Chunk:
        """The chunk for `output`, a delta."""
        finish = _FINISH.get(output.finish_reason, FinishReason.ERROR)
        token_ids, text = tuple(output.token_ids), output.text
        if self._resumed is not None:
            text, used, stopped = self._resumed.push(token_ids, finish)
            token_ids = token_ids[:used]
            finish = FinishReason.STOP if stopped else finish
        self._output_tokens += len(token_ids)
        if output.spec_decode_metrics is not None:
            self._counted, self._drafts = True, _draft_counts(output.spec_decode_metrics)
        margins = _margins(output.logprobs)[: len(token_ids)] if self._request.margins else None
        error = f"vLLM ended the request with {output.finish_reason!r}" if finish is FinishReason.ERROR else None
        return self._chunk(text, token_ids, finish, error=error, margins=margins)

    def cancelled(self) -> Chunk:
        """The last chunk of a cancelled answer."""
        return self._chunk("", (), FinishReason.CANCELLED, margins=() if self._request.margins else None)

    def failed(self, error: str, code: str = "internal") -> Chunk:
        """The last chunk of a failed answer."""
        return self._chunk("", (), FinishReason.ERROR, error=error, code=code)

    def _chunk(
        self,
        text: str,
        token_ids: tuple[int, ...],
        finish: FinishReason | None,
        *,
        error: str | None = None,
        code: str = "internal",
        margins: tuple[float, ...] | None = None,
    ) -> Chunk:
        generated = self._output_tokens - len(self._request.resume_ids)
        drafted, accepted, spec_steps, rejected_at, engine_s = self._drafts
        counts = Counts(
            prompt_tokens=len(self._request.prompt_ids),
            output_tokens=self._output_tokens,
            counted=self._counted,
            drafted=drafted,
            accepted=accepted,
            # The prompt's pass emits the first token; each step emits its accepted drafts and one more token.
            steps=max(spec_steps, generated - 1 - accepted),
            rejected_at=rejected_at,
            engine_s=engine_s,
        )
        return Chunk(
            request_id=self._request.request_id,
            text=text,
            token_ids=token_ids,
            counts=counts,
            finish_reason=finish,
            error=error,
            error_code=code,
            margins=margins,
        )


def _draft_counts(metrics: Any) -> _Drafts:
    """The counts in vLLM's `RequestSpecDecodeMetrics`."""
    rejected_at = [0] * metrics.num_spec_tokens
    for accepted, drafted in zip(metrics.per_step_accepted, metrics.per_step_drafted, strict=True):
        if accepted < drafted:
            rejected_at[accepted] += 1
    counts = metrics.to_dict()
    steps, accepted = counts["num_spec_steps"], counts["num_accepted_draft_tokens"]
    return metrics.num_draft_tokens, accepted, steps, tuple(rejected_at), counts.get("engine_seconds")


def _margins(logprobs: Sequence[Any] | None) -> tuple[float, ...]:
    """For each token, the gap between the two best log-probabilities, which equals the gap between the logits."""
    gaps = []
    for position in logprobs or ():
        best = sorted((entry.logprob for entry in position.values() if entry.rank in (1, 2)), reverse=True)
        gaps.append(best[0] - best[1] if len(best) > 1 else 0.0)
    return tuple(gaps)
