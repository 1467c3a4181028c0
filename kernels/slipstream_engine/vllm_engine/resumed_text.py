"""Text of an answer that continues after tokens committed elsewhere, decoded by vLLM's own detokenizer.

vLLM treats committed tokens as part of the prompt, where no stop string and no character can extend into the answer.
The detokenizer therefore runs here, first over the committed tokens. Their released text is discarded, and their
held-back text is emitted with the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from slipstream_engine.contract.types import FinishReason, GenerationRequest
from slipstream_engine.errors import RequestError
from slipstream_engine.vllm_engine.tokenizer import VllmTokenizer

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


class ResumedText:
    """Incremental text after `request.resume_ids`.

    Raises:
        RequestError: the committed tokens contain a stop string or EOS, so they are a whole answer.
    """

    def __init__(self, request: GenerationRequest, tokenizer: VllmTokenizer, params: SamplingParams) -> None:
        parts = SimpleNamespace(
            request_id=request.request_id,
            prompt_token_ids=list(request.prompt_ids),
            prompt_embeds=None,
            sampling_params=params,
        )
        self._detokenizer: Any = IncrementalDetokenizer.from_new_request(tokenizer.shared, parts)
        stopped = self._detokenizer.update(list(request.resume_ids), False) is not None
        if stopped or not tokenizer.eos_ids.isdisjoint(request.resume_ids):
            raise RequestError("resume_ids already hold a stop string or EOS: there is nothing to continue")
        self._detokenizer.get_next_output_text(finished=False, delta=True)

    def push(self, token_ids: Sequence[int], finish: FinishReason | None) -> tuple[str, int, bool]:
        """(released text, number of `token_ids` that belong to the answer, whether a stop string is complete). `finish`
        is vLLM's finish reason, None if the answer continues."""
        before = self._detokenizer.num_output_tokens()
        stopped = self._detokenizer.update(list(token_ids), finish is FinishReason.STOP) is not None
        text = self._detokenizer.get_next_output_text(finished=stopped or finish is not None, delta=True)
        return text, self._detokenizer.num_output_tokens() - before, stopped
