"""The text of an answer that goes on after tokens which were committed elsewhere, by vLLM's own detokenizer.

vLLM takes committed tokens for a part of the prompt, of which a stop string or a character never reaches into the
answer. So its detokenizer is run here, over the committed tokens first: what they released is left out, and what
they held back comes with the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from slipstream_engine.errors import RequestError
from slipstream_engine.types import FinishReason, GenerationRequest
from slipstream_engine.vllm_engine.tokenizer import VllmTokenizer

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


class ResumedText:
    """Incremental text after `request.resume_ids`.

    Raises:
        RequestError: the committed tokens hold a stop string or EOS: they are a whole answer.
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
        """(text that `token_ids` release, how many of them belong to the answer, whether a stop string is complete).
        `finish` is why vLLM ended, None where it goes on."""
        before = self._detokenizer.num_output_tokens()
        stopped = self._detokenizer.update(list(token_ids), finish is FinishReason.STOP) is not None
        text = self._detokenizer.get_next_output_text(finished=stopped or finish is not None, delta=True)
        return text, self._detokenizer.num_output_tokens() - before, stopped
