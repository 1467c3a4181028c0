"""Continues an OpenAI-compatible stream on another server, by its text.

The forwarded events are parsed for their text. The next server gets the conversation with that text as the last,
unfinished message (`continue_final_message` of vLLM and SGLang), or the prompt followed by it. Its events are rewritten
to look like one stream: the first server's id and creation time, no second role, usage of the whole.

https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from slipstream_core.types import Endpoint, GenerationRequest

from slipstream_gateway.upstreams.base import Committed, Usage
from slipstream_gateway.upstreams.openai_answer import AnswerReader
from slipstream_gateway.upstreams.openai_wire import has_generated_text
from slipstream_gateway.upstreams.sse import DONE, event_data, split_events

_LIMITS = ("max_tokens", "max_completion_tokens")
_MOST_STOP_CHARS = 4096
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.encode


class _Head(msgspec.Struct):
    id: str | None = None
    created: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_event = msgspec.json.Decoder(_Event).decode


def read_forwarded(blocks: Iterable[bytes], usage: Usage, *, least_tokens: int = 0) -> Committed | None:
    """The part of an answer that the client has, from the forwarded events; None if another server cannot continue it,
    because the answer has parts besides its text (reasoning, tool calls), is complete, or does not have OpenAI's form.
    The number of tokens is the server's count, else the number of events with text, but at least `least_tokens`."""
    reader, head, events = AnswerReader(stream=True), _Head(), 0
    try:
        for event in (event for block in blocks for event in split_events(block)):
            payload = event_data(event)
            if not payload or payload == DONE:
                continue
            head = head if head.id is not None else _decode_head(payload)
            reader.feed(event)
            events += has_generated_text(event)
    except (ValueError, UnicodeDecodeError):
        return None
    if reader.finish_reason is not None or reader.parts not in ((), ("content",)):
        return None
    return Committed(
        text=reader.text,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens if usage.exact else max(events, least_tokens),
        most_output_tokens=usage.most_output_tokens,
        answer_id=head.id or "",
        created=head.created or 0,
    )


def is_open_stop(text: str, stop: Sequence[str]) -> bool:
    """Whether `text` ends with the beginning of a stop string, which the next server would not recognise. Also True of
    very long stop strings, with which the search would block the event loop: its time grows by their square."""
    return sum(map(len, stop)) > _MOST_STOP_CHARS or any(
        text.endswith(string[:length]) for string in stop for length in range(1, len(string))
    )


def continued_body(request: GenerationRequest, committed: Committed, body: bytes) -> bytes:
    """`body`, changed to request the continuation of the committed text."""
    if not committed.text:
        return body
    fields = _decode_raw(body)
    if request.endpoint is Endpoint.CHAT:
        message = msgspec.Raw(_encode({"role": "assistant", "content": committed.text}))
        fields["messages"] = msgspec.Raw(_encode([*_decode_rows(fields["messages"]), message]))
        fields["continue_final_message"] = msgspec.Raw(b"true")
        fields["add_generation_prompt"] = msgspec.Raw(b"false")
    else:
        fields["prompt"] = msgspec.Raw(_encode(f"{request.prompt}{committed.text}"))
    return limited_body(request, committed, _encode(fields))


def limited_body(request: GenerationRequest, committed: Committed, body: bytes) -> bytes:
    """`body` with the rest of the request's limit of tokens."""
    fields = _decode_raw(body)
    if request.max_tokens is not None:
        for name in _LIMITS:
            if name in fields and bytes(fields[name]) != b"null":
                fields[name] = msgspec.Raw(b"%d" % max(request.max_tokens - committed.output_tokens, 1))
    return _encode(fields)


class Continued:
    """Rewrites the events of the server that continues after `committed`."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._head = {
            "id": msgspec.Raw(_encode(committed.answer_id)),
            "created": msgspec.Raw(_encode(committed.created)),
        }

    def count(self, usage: Usage) -> None:
        """Turns `usage`, as reported by the server, into that of the whole answer. The server's prompt contained the
        committed text."""
        known = self._committed
        usage.prompt_tokens = known.prompt_tokens or max(usage.prompt_tokens - known.output_tokens, 0)
        usage.output_tokens += known.output_tokens
        usage.most_output_tokens += known.most_output_tokens

    def rewrite(self, block: bytes, usage: Usage) -> bytes:
        """The events of `block` for the client. `usage` is that of the whole, if known."""
        return b"".join([self._rewritten(event, usage) for event in split_events(block)])

    def _rewritten(self, event: bytes, usage: Usage) -> bytes:
        payload = event_data(event)
        if not payload or payload == DONE:
            return event
        try:
            fields = _decode_raw(payload)
            if _is_role_alone(payload):
                return b""
        except (msgspec.DecodeError, UnicodeDecodeError):
            return event
        fields.update({name: value for name, value in self._head.items() if name in fields})
        if usage.exact and bytes(fields.get("usage", b"null"))[:1] == b"{":
            usage_fields = msgspec.json.decode(fields["usage"], type=dict[str, msgspec.Raw])
            total = usage.prompt_tokens + usage.output_tokens
            usage_fields["prompt_tokens"] = msgspec.Raw(b"%d" % usage.prompt_tokens)
            usage_fields["completion_tokens"] = msgspec.Raw(b"%d" % usage.output_tokens)
            usage_fields["total_tokens"] = msgspec.Raw(b"%d" % total)
            fields["usage"] = msgspec.Raw(_encode(usage_fields))
        return b"data: " + _encode(fields) + b"\n\n"


def _is_role_alone(payload: bytes) -> bool:
    """Whether an event contains the role and nothing else."""
    choices = _decode_event(payload).choices or []
    return bool(choices) and all(
        choice.delta is not None
        and choice.delta.role is not None
        and not choice.delta.content
        and choice.finish_reason is None
        for choice in choices
    )
