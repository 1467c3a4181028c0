"""Continues an answer that another server began: `vllm_xargs.slipstream_resume_token_ids` are its tokens so far.

They are appended to the prompt after vLLM has rendered it, so every API keeps its own template. The new answer begins
after them. Its tokens are those that the first server would have generated next, if the request is greedy, or if it
has a seed and the noise depends on seed and position alone (`Resumes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from slipstream_vllm import settings
from slipstream_vllm.errors import BadRequest
from slipstream_vllm.hooks import wrap

RESUME_KEY = "slipstream_resume_token_ids"
_FIELD = f"vllm_xargs.{RESUME_KEY}"
_UNFINISHED = "\ufffd"  # what a tokenizer returns for a part of a character
_WINDOW = 8  # tokens, more than a character has

Resumes = Literal["greedy", "seeded"]
"""The requests whose answers this server continues exactly: greedy ones alone, or all."""


def install() -> None:
    """Make the text of a resumed answer begin where the first server's ended."""
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    wrap(FastIncrementalDetokenizer, "__init__", _begun_before)


def resumes(vllm_config: Any) -> Resumes:
    """V1 draws from one generator for each request, which begins anew on this server."""
    exact = vllm_config.use_v2_model_runner and settings.acceptance(vllm_config) == "equality"
    return "seeded" if exact else "greedy"


def continued(prompt: Any, extra_args: Mapping[str, Any] | None, tokenizer: Any) -> Any:
    """The rendered `prompt` with the tokens of the request's answer so far. Raises: `BadRequest`."""
    value = (extra_args or {}).get(RESUME_KEY)
    if value is None:
        return prompt
    if not hasattr(tokenizer, "_tokenizer") or not isinstance(prompt, dict) or prompt.get("prompt_token_ids") is None:
        raise BadRequest(f"{_FIELD} needs a prompt of tokens, and a tokenizer of Hugging Face's.", parameter=_FIELD)
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < len(tokenizer) for each in value):
        raise BadRequest(f"{_FIELD} is {value!r:.80}; a list of token ids is required.", parameter=_FIELD)
    return {**prompt, "prompt_token_ids": [*prompt["prompt_token_ids"], *value]}


def _begun_before(initialize: Callable[..., None]) -> Callable[..., None]:
    # A stream that starts after a part of a character returns the whole prompt with the character's end.
    def initialize_after_parts(self: Any, tokenizer: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, tokenizer, request, *args, **kwargs)
        resumed = len((request.sampling_params.extra_args or {}).get(RESUME_KEY, ()))
        ids = request.prompt_token_ids
        parts = parts_of_characters(self.tokenizer, ids, resumed) if resumed else 0
        if parts:
            self.stream = type(self.stream)(ids=ids[:-parts], skip_special_tokens=self.skip_special_tokens)
            for token_id in ids[-parts:]:
                self.stream.step(self.tokenizer, token_id)

    return initialize_after_parts


def parts_of_characters(tokenizer: Any, ids: Sequence[int], most: int) -> int:
    """The number of the last tokens, at most `most`, whose text a stream withholds because it ends within a
    character."""
    parts = 0
    while parts < most and tokenizer.decode(ids[: len(ids) - parts][-_WINDOW:]).endswith(_UNFINISHED):
        parts += 1
    return parts
