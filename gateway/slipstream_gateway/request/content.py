"""Facts about the content of an answer, by which two revisions of a pair are compared: shares in percent, never text.

Each measure divides an answer into a few parts. Its numbers are the parts' shares; the last part's share is left out.
The operator compares the shares of both revisions, so a measure need not be right about each answer.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from slipstream_core.observation import Content, Measure
from slipstream_core.types import Endpoint, GenerationRequest

from slipstream_gateway.request.json_schema import fits
from slipstream_gateway.upstreams.base import Piece
from slipstream_gateway.upstreams.openai_answer import AnswerReader

_MOST_READ_BYTES = 128 * 1024  # of an answer without a prescribed form: some 600 events, which take 1.6 ms
_MOST_CHARACTERS = 4096
_FEWEST_LETTERS = 40  # of fewer letters, a text could be guessed from their frequencies
_FEWEST_BYTES = 100  # shorter texts cannot be compressed
_OPENING = 200
_TOOLS = 15
_FREQUENT = "etaoinshrdlu"
_ASCII_LETTER = re.compile(r"[a-z]")
_OTHER_ALPHABETS = 3
_REFUSAL = re.compile(
    r"\bi(?:['’]m sorry| am sorry| apologi[sz]e| can['’]t| cannot|(?:['’]m| am) (?:unable|not able)| won['’]t)\b"
    r"|\bas an ai\b|tut mir leid|ich kann (?:\w+ ){0,3}nicht|désolé|je ne peux pas|lo siento|no puedo|mi dispiace"
)
_FORMS = frozenset({"response_format", "tools"})
_FINISHED_BY_FILTER = "content_filter"


class _Schema(msgspec.Struct):
    schema: Any = None


class _Format(msgspec.Struct):
    type: str = "text"
    json_schema: _Schema | None = None


class _Function(msgspec.Struct):
    name: str
    parameters: Any = None


class _Tool(msgspec.Struct):
    function: _Function


class _Form(msgspec.Struct):
    """The form that a request prescribes for its answer."""

    response_format: _Format | None = None
    tools: tuple[_Tool, ...] | None = None


_decode_form = msgspec.json.Decoder(_Form).decode


def content_of(request: GenerationRequest, pieces: Sequence[Piece]) -> Content | None:
    """The facts about the answer to `request`, with one choice. None if it cannot be read."""
    if request.endpoint is Endpoint.RESPONSES or not pieces:
        return None
    try:
        form = _decode_form(request.raw) if request.features & _FORMS else _Form()
        reader = _read(pieces, stream=request.stream, whole=form != _Form())
    except (ValueError, RecursionError):
        return None
    return dict(_facts(form, reader))


def _read(pieces: Sequence[Piece], *, stream: bool, whole: bool) -> AnswerReader:
    reader, read_bytes = AnswerReader(stream=stream), 0
    for piece in pieces:
        reader.feed(piece.data)
        read_bytes += len(piece.data)
        if read_bytes > _MOST_READ_BYTES and not whole:
            break
    return reader


def _facts(form: _Form, reader: AnswerReader) -> Iterator[tuple[Measure, tuple[int, ...]]]:
    texts = reader.texts
    text = texts.get("content", "")
    calls = [_call_of(texts[part]) for part in reader.parts if part.startswith("tool ")]
    is_filtered = reader.finish_reason == _FINISHED_BY_FILTER or "refusal" in texts
    yield Measure.REFUSED, (_percent(is_filtered or bool(_REFUSAL.search(text[:_OPENING].casefold()))),)
    yield Measure.REPEATED, (_percent(_repeated(text[:_MOST_CHARACTERS].encode(errors="replace"))),)
    if (letters := _letters(text[:_MOST_CHARACTERS].casefold())) is not None:
        yield Measure.LETTERS, letters
    if form.tools:
        yield Measure.TOOLS, _tool(form.tools, calls)
    if form.tools or form.response_format is not None:
        yield Measure.INVALID, (_percent(not _is_valid(form, text, calls)),)


def _call_of(text: str) -> tuple[str, str]:
    """The function's name and the arguments of a tool call. A name has no brace."""
    name, brace, rest = text.partition("{")
    return name, brace + rest


def _is_valid(form: _Form, text: str, calls: Sequence[tuple[str, str]]) -> bool:
    """Whether the answer has the form that the request prescribes: a text where no tool is called."""
    if calls:
        declared: Mapping[str, Any] = {tool.function.name: tool.function.parameters for tool in form.tools or ()}
        return all(name in declared and _is_json_of(given or "{}", declared[name]) for name, given in calls)
    expected = form.response_format
    if expected is None or expected.type not in ("json_object", "json_schema"):
        return True
    return _is_json_of(text, expected.json_schema.schema if expected.json_schema is not None else {"type": "object"})


def _is_json_of(text: str, schema: Any) -> bool:
    try:
        return fits(msgspec.json.decode(text), schema)
    except (ValueError, RecursionError):
        return False


def _tool(tools: Sequence[_Tool], calls: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """The first called tool by its place in the request, the rest for none and for one that the request lacks."""
    places = [place for place, tool in enumerate(tools) if calls and tool.function.name == calls[0][0]]
    chosen = places[0] % _TOOLS if places else None
    return tuple(100 * (place == chosen) for place in range(_TOOLS))


def _repeated(text: bytes) -> float:
    """The share of `text` that compression saves: a text that repeats itself has a large one."""
    return max(1.0 - len(zlib.compress(text)) / len(text), 0.0) if len(text) >= _FEWEST_BYTES else 0.0


def _letters(text: str) -> tuple[int, ...] | None:
    """The shares of the letters that differ most between languages: the frequent ones of English one by one, Latin ones
    beyond ASCII together, those of other alphabets in three parts by their Unicode block. The rest is left out."""
    foreign = [ord(letter) for letter in text if letter > "\x7f" and letter.isalpha()]
    total = len(_ASCII_LETTER.findall(text)) + len(foreign)
    if total < _FEWEST_LETTERS:
        return None
    others = [(code >> 7) % _OTHER_ALPHABETS for code in foreign if code >= 0x250]  # where the Latin blocks end
    counts = [text.count(letter) for letter in _FREQUENT]
    counts += [len(foreign) - len(others), *map(others.count, range(_OTHER_ALPHABETS))]
    return tuple(_percent(count / total) for count in counts)


def _percent(share: float) -> int:
    return round(100.0 * share)
