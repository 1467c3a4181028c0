"""Tokenizes prompts with the tokenizer and the chat template of vLLM's server."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from slipstream_engine.errors import RequestError

if TYPE_CHECKING:
    from vllm.renderers.params import ChatParams
    from vllm.v1.engine.async_llm import AsyncLLM


class VllmTokenizer:
    """Tokenizes for Triton's threads. `shared` is vLLM's own tokenizer, for decoding, which does not change it.

    vLLM's tokenizer is a pool of copies, and each call takes one. Triton's threads use a separate pool, so a long
    prompt blocks no other thread of Triton or vLLM.

    Args:
        llm: the engine.
        app: vLLM's application, which has the chat template of the command line.
    """

    def __init__(self, llm: AsyncLLM, app: Any) -> None:
        self.shared: Any = llm.get_tokenizer()
        self.eos_ids = _eos_ids(self.shared, llm.model_config.try_get_generation_config())
        self._tokenizer = copy.deepcopy(self.shared)
        self._renderer = llm.renderer
        self._chat_params = _chat_params(app.state.online_renderer)
        self._context_tokens = int(llm.model_config.max_model_len)

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of `text`, with the tokens that the tokenizer adds, usually BOS."""
        self._check_length(text)
        return tuple(self._tokenizer.encode(text))

    def render_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """The prompt for a chat up to the start of the answer, the same as vLLM's server renders."""
        try:
            _, prompt = self._renderer.render_messages(messages, self._chat_params)
        except Exception as exc:  # a template is code from the checkpoint and may raise any exception
            raise RequestError(f"messages: the model's chat template refuses them: {exc}") from exc
        text: str = prompt["prompt"]
        self._check_length(text)
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _check_length(self, text: str) -> None:
        """Reject a text that cannot fit before tokenizing it for seconds. The limit is that of vLLM's server."""
        most = self._context_tokens * self.shared.max_chars_per_token
        if len(text) > most:
            raise RequestError(
                f"the prompt has {len(text)} characters; the context of {self._context_tokens} tokens holds at most "
                f"{most}",
                code="context_length_exceeded",
            )


def _chat_params(rendering: Any) -> ChatParams:
    """The parameters with which vLLM's server renders a chat without options of its own, including `--chat-template`
    and `--default-chat-template-kwargs`."""
    request = ChatCompletionRequest(messages=[{"role": "user", "content": ""}])
    params = request.build_chat_params(rendering.chat_template, rendering.chat_template_content_format)
    defaults = rendering.default_chat_template_kwargs or {}
    return params.with_defaults({**defaults, "tools": None, "tokenize": False})


def _eos_ids(tokenizer: Any, generation_config: Mapping[str, Any]) -> frozenset[int]:
    """All EOS ids: the tokenizer's and those of the generation configuration."""
    listed = generation_config.get("eos_token_id")
    more = listed if isinstance(listed, list) else [listed]
    return frozenset(token for token in (tokenizer.eos_token_id, *more) if token is not None)
