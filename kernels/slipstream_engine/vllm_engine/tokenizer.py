"""Prompts by the tokenizer that vLLM has loaded."""

from __future__ import annotations

import copy
import threading
from typing import Any

from slipstream_engine.errors import RequestError


class VllmTokenizer:
    """A copy of vLLM's tokenizer, for other threads than vLLM's: Hugging Face's fast tokenizers refuse to be used by
    two at once. `shared` is vLLM's own, for decoding, which changes nothing in it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._lock = threading.Lock()
        self.shared = tokenizer
        self.eos_id: int | None = tokenizer.eos_token_id

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of `text`, with what the tokenizer adds itself, usually BOS."""
        with self._lock:
            return tuple(self._tokenizer.encode(text))

    def render_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """The prompt for a chat by the tokenizer's template, up to where the answer begins."""
        try:
            with self._lock:
                text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
                return tuple(self._tokenizer.encode(text, add_special_tokens=False))
        except Exception as exc:  # a template is a program of the checkpoint's: it may raise anything
            raise RequestError(f"messages: the model's chat template refuses them: {exc}") from exc
