"""Writes answers in OpenAI's form: whole bodies, or server-sent events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from slipstream_engine.contract.types import Chunk, Counts, merge_chunks
from slipstream_engine.openai.answer.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenTexts,
    chat_logprobs,
    completion_logprobs,
)
from slipstream_engine.openai.answer.usage import Metrics, Usage, metrics_of, usage_of
from slipstream_engine.openai.request.calls import Call

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode
Logprobs = ChatLogprobs | CompletionLogprobs


class _Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of an event or of a body, with vLLM's order of fields. The fields of the other kinds are left out."""

    index: int
    message: dict[str, Any] | UnsetType = UNSET
    delta: _Delta | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: Logprobs | None
    finish_reason: str | None
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class _Document(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    object: str
    created: int
    model: str
    choices: Sequence[_Choice]
    system_fingerprint: str
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    usage: Usage | None = None
    metrics: Metrics | None = None


class _Written(msgspec.Struct):
    """The state of one choice. `offset` is the number of characters in the text so far, by tokens."""

    counts: Counts | None = None
    offset: int = 0


class Renderer:
    """Renders the answer of `call` by the model `model`. `longest` is the engine's draft length."""

    def __init__(self, call: Call, *, model: str, fingerprint: str, longest: int, texts: TokenTexts) -> None:
        self._call, self._model, self._fingerprint = call, model, fingerprint
        self._longest, self._texts = longest, texts
        self._created = int(time.time())
        self._written = [_Written() for _ in call.requests]
        suffix = ".chunk" if call.stream else ""
        self._object = f"chat.completion{suffix}" if call.is_chat else "text_completion"

    def events(self, index: int, chunk: Chunk) -> bytes:
        """The events for a part of choice `index`."""
        written = self._written[index]
        first, written.counts = written.counts is None, chunk.counts
        head = self._head(index) if first else b""
        text = self._echo(index) + chunk.text if first else chunk.text
        if self._call.is_chat and not (text or chunk.last or self._call.token_ids or chunk.logprobs):
            return head
        choice = _Choice(
            index=index,
            delta=_Delta(content=text or None) if self._call.is_chat else UNSET,
            text=UNSET if self._call.is_chat else text,
            logprobs=self._logprobs(chunk, written),
            finish_reason=chunk.finish_reason,
            prompt_token_ids=self._prompt_ids(index) if first and not self._call.is_chat else UNSET,
            token_ids=chunk.token_ids if self._call.token_ids else UNSET,
        )
        return head + self._event([choice])

    def end(self) -> bytes:
        """The events after the last part."""
        if not self._call.include_usage:
            return DONE
        usage, metrics = self._costs()
        return self._event([], usage=usage, metrics=metrics) + DONE

    def whole(self, answers: Sequence[Sequence[Chunk]]) -> bytes:
        """The body of a whole answer, from the chunks of each choice."""
        for written, chunks in zip(self._written, answers, strict=True):
            written.counts = chunks[-1].counts
        usage, metrics = self._costs()
        document = self._document(
            [self._whole_choice(index, chunks) for index, chunks in enumerate(answers)],
            usage=usage,
            metrics=metrics,
            prompt_token_ids=self._prompt_ids(0) if self._call.is_chat else UNSET,
        )
        return _encode(document)

    def _whole_choice(self, index: int, chunks: Sequence[Chunk]) -> _Choice:
        merged = merge_chunks(chunks)
        text = self._echo(index) + merged.text
        return _Choice(
            index=index,
            message={"role": "assistant", "content": text, "refusal": None} if self._call.is_chat else UNSET,
            text=UNSET if self._call.is_chat else text,
            logprobs=self._logprobs(merged, self._written[index]),
            finish_reason=merged.finish_reason,
            prompt_token_ids=UNSET if self._call.is_chat else self._prompt_ids(index),
            token_ids=merged.token_ids if self._call.token_ids else UNSET,
        )

    def _head(self, index: int) -> bytes:
        """The first event of a chat's choice, with its role."""
        if not self._call.is_chat:
            return b""
        choice = _Choice(index=index, delta=_Delta("assistant", ""), logprobs=None, finish_reason=None)
        return self._event([choice], prompt_token_ids=self._prompt_ids(index))

    def _echo(self, index: int) -> str:
        return self._call.echoes[index // self._call.choices] if self._call.echoes else ""

    def _prompt_ids(self, index: int) -> Sequence[int] | UnsetType:
        request = self._call.requests[index]
        return (*request.prompt_ids, *request.resume_ids) if self._call.token_ids else UNSET

    def _logprobs(self, chunk: Chunk, written: _Written) -> Logprobs | None:
        if chunk.logprobs is None:
            return None
        if self._call.is_chat:
            return chat_logprobs(chunk.logprobs, self._texts)
        found = completion_logprobs(chunk.logprobs, self._texts, written.offset)
        written.offset += sum(map(len, found.tokens))
        return found

    def _costs(self) -> tuple[Usage, Metrics]:
        counts = [written.counts for written in self._written if written.counts is not None]
        return usage_of(self._call.requests, counts, self._call.choices), metrics_of(counts, self._longest)

    def _event(self, choices: Sequence[_Choice], **more: Any) -> bytes:
        return b"data: " + _encode(self._document(choices, **more)) + b"\n\n"

    def _document(self, choices: Sequence[_Choice], **more: Any) -> _Document:
        return _Document(
            id=self._call.id,
            object=self._object,
            created=self._created,
            model=self._model,
            choices=choices,
            system_fingerprint=self._fingerprint,
            **more,
        )
