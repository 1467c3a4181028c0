"""The text of an answer in OpenAI's wire form, for comparing answers. It parses JSON, so it is never used on a
request's path.

The text of a model is its reasoning, its content, its refusal and its tool calls. Ids, times and usage differ from run
to run and are left out.
"""

from __future__ import annotations

import msgspec

from slipstream_gateway.upstreams.sse import DONE, event_data, split_events

_BETWEEN = "\x1e"  # Unicode's record separator, between the parts of an answer that has several


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    function: _Function = msgspec.field(default_factory=_Function)


class AnswerMessage(msgspec.Struct):
    """The generated fields of a message, or of the part of a message that an event adds."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class AnswerChoice(msgspec.Struct):
    """One choice: `message` of a whole chat, `delta` of an event, `text` of a text completion."""

    message: AnswerMessage | None = None
    delta: AnswerMessage | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[AnswerChoice] | None = None
    error: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(_Answer).decode


class AnswerReader:
    """Collects the text of one choice. `stream` True takes blocks of whole events, else one JSON body."""

    def __init__(self, *, stream: bool) -> None:
        self.finish_reason: str | None = None
        self._stream = stream
        self._parts: dict[str, list[str]] = {"reasoning": [], "content": [], "refusal": []}

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts with text so far: `reasoning`, `content`, `refusal`, `tool <n>`."""
        return tuple(name for name, texts in self._parts.items() if texts)

    @property
    def texts(self) -> dict[str, str]:
        """The text of each of `parts`."""
        return {name: "".join(texts) for name, texts in self._parts.items() if texts}

    @property
    def text(self) -> str:
        """All text so far, with a separator between several parts."""
        return _BETWEEN.join(self.texts.values())

    def feed(self, data: bytes) -> None:
        """Adds one block. Raises `ValueError` if it does not have OpenAI's form, or reports an error."""
        if not self._stream:
            self._take(data)
            return
        for event in split_events(data):
            payload = event_data(event)
            if payload and payload != DONE:
                self._take(payload)

    def _take(self, payload: bytes) -> None:
        answer = _decode(payload)  # a DecodeError is a ValueError
        if answer.error is not None and bytes(answer.error) != b"null":
            raise ValueError("the answer is an error")
        for choice in answer.choices or ():
            self._add("content", choice.text)
            self._message(choice.delta or choice.message or AnswerMessage())
            self.finish_reason = choice.finish_reason or self.finish_reason

    def _message(self, message: AnswerMessage) -> None:
        self._add("reasoning", message.reasoning_content or message.reasoning)
        self._add("content", message.content)
        self._add("refusal", message.refusal)
        for position, call in enumerate(message.tool_calls or ()):
            key = f"tool {call.index if self._stream else position}"
            self._add(key, call.function.name)
            self._add(key, call.function.arguments)

    def _add(self, part: str, text: str | None) -> None:
        if text:
            self._parts.setdefault(part, []).append(text)
