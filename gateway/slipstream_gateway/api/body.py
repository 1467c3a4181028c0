"""The wire form of a request body: JSON decoded into types, with errors that name the field and its value.

The number of values is limited before a body is decoded, because decoding and validation cost time per value: 300,000
fields in 3.5 MB took over a second and blocked all other requests of the worker. The count works on whole bytes: it
removes escapes first, so that each remaining quotation mark begins or ends a string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec
from slipstream_core.errors import InvalidRequest, MissingParameter, RequestCode, shorten
from slipstream_core.parameter_names import KNOWN_PARAMETERS, suggestion

MAX_PARTS = 65_536
"""Strings (including field names), objects and lists of one body: a conversation of thousands of messages fits."""
MAX_ELEMENTS = 1_048_576
"""All values, including numbers: a prompt of token ids fits."""
MAX_FIELDS = 1_024
"""Top-level fields of the body."""
_TEXT = re.compile(rb'"[^"]*"')


class Values(NamedTuple):
    """`parts` are strings, objects and lists; `commas` separate the values of objects and lists."""

    parts: int
    commas: int


def check_values(raw: bytes) -> None:
    """Raises `InvalidRequest` if the body `raw` holds more values than a request may."""
    if len(raw) <= MAX_PARTS:  # each value has at least one byte
        return
    if raw.count(b'"') // 2 + _containers(raw) <= MAX_PARTS and raw.count(b",") < MAX_ELEMENTS:
        return  # an upper bound, because strings may contain these characters
    found = count_values(raw)
    if found.parts > MAX_PARTS:
        what = f"at least {found.parts} strings, objects and lists"
        raise InvalidRequest(f"The request body has {what}; at most {MAX_PARTS} are allowed.")
    if found.commas >= MAX_ELEMENTS:
        raise InvalidRequest(f"The request body has over {found.commas} values; at most {MAX_ELEMENTS} are allowed.")


def count_values(raw: bytes) -> Values:
    """Counts the values of `raw`; only the strings if these alone are too many."""
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in raw else raw
    texts = plain.count(b'"') // 2
    if texts > MAX_PARTS:
        return Values(texts, 0)
    plain = _TEXT.sub(b"", plain)
    return Values(texts + _containers(plain), plain.count(b","))


def _containers(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[")


def check_fields(fields: Collection[str]) -> None:
    """Raises `InvalidRequest` if the body has more than `MAX_FIELDS` top-level fields."""
    if len(fields) > MAX_FIELDS:
        raise InvalidRequest(f"The request body has {len(fields)} fields; at most {MAX_FIELDS} are allowed.")


_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_EXACT = 2.0**53  # larger floats are not exact integers
_JSON_TYPES = {
    "bool": "a boolean",
    "float": "a number",
    "int": "an integer",
    "str": "a string",
    "array": "an array",
    "object": "an object",
}
_TYPE = re.compile(r"\b(?:" + "|".join(_JSON_TYPES) + r")\b")
_ABSENT = re.compile(r"missing required field `([^`]+)`")
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


class WirePart(msgspec.Struct):
    """One part of a message's content. Only text is read; other kinds become features."""

    type: str
    text: str | None = None


class WireMessage(msgspec.Struct):
    """The fields of a message that the gateway reads; its other keys become features."""

    role: str
    content: str | list[WirePart] | None = None
    name: str | None = None


class WireStreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class WireSampling(msgspec.Struct):
    """The sampling fields of all generation endpoints."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class WireBody(WireSampling):
    """The fields of chat and text completions that the gateway reads; of all others it sees the names only."""

    messages: list[WireMessage] | None = None
    prompt: str | list[str | int | list[int]] | None = None
    stream_options: WireStreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None


class WireItem(msgspec.Struct):
    """One item of a response's `input`: a message unless `type` says otherwise."""

    type: str | None = None
    role: str | None = None
    content: Any = None
    arguments: Any = None
    output: Any = None


class WireResponsesBody(WireSampling):
    """The fields of a response that the gateway reads."""

    input: str | list[WireItem] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    background: bool | None = None


CORE_FIELDS = frozenset(WireBody.__struct_fields__) - {"best_of"}  # read for counting; backends must honour it
RESPONSES_FIELDS = frozenset(WireResponsesBody.__struct_fields__)
_Body = TypeVar("_Body")
_decode_body = msgspec.json.Decoder(WireBody).decode
_decode_responses_body = msgspec.json.Decoder(WireResponsesBody).decode
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def decode_body(raw: bytes) -> tuple[WireBody, dict[str, msgspec.Raw]]:
    """The body of a chat or text completion, and its fields by name. Raises `InvalidRequest`."""
    return _decode(raw, _decode_body)


def decode_responses_body(raw: bytes) -> tuple[WireResponsesBody, dict[str, msgspec.Raw]]:
    """The body of a response, and its fields by name. Raises `InvalidRequest`."""
    return _decode(raw, _decode_responses_body)


def decode_fields(raw: bytes) -> dict[str, msgspec.Raw]:
    """The fields of any JSON object by name. Raises `InvalidRequest`."""
    return _decode(raw, _decode_names)[1]


def missing(name: str, fields: Collection[str]) -> MissingParameter:
    """The error for a body without the field `name`. A similar name among `fields` may be a misspelling of it."""
    unknown = [field for field in fields if field not in KNOWN_PARAMETERS]
    found = next((field for field in unknown if suggestion(field, (name,))), None)
    return MissingParameter(name, "" if found is None else f"Is '{found}' a misspelling of it?")


def empty_array(where: str, expected: str) -> InvalidRequest:
    """The error for the value `[]` of the field `where`."""
    return InvalidRequest(f"Invalid '{where}': expected {expected}, got [].", param=where, code=RequestCode.EMPTY_ARRAY)


def _decode(raw: bytes, decode: Callable[[bytes], _Body]) -> tuple[_Body, dict[str, msgspec.Raw]]:
    check_values(raw)
    try:
        if not raw.isascii():
            raw.decode()  # the decoders validate only the strings that they return, and the rest goes upstream
        fields = _decode_names(raw)
        check_fields(fields)
        return _decode_fields(raw, fields, decode), fields
    except msgspec.ValidationError as exc:
        _explain(raw, exc)
    except UnicodeDecodeError as exc:
        raise InvalidRequest("The request body is not valid UTF-8.") from exc
    except msgspec.DecodeError as exc:
        if b"\\ud" in raw.lower():
            message = "The request body is not valid JSON, or contains a lone surrogate (\\ud800 to \\udfff)."
            raise InvalidRequest(message) from exc
        raise InvalidRequest(f"The request body is not valid JSON: {_lower_first(str(exc))}.") from exc
    except RecursionError as exc:
        raise InvalidRequest("The request body is nested too deeply.") from exc


def _decode_fields(raw: bytes, fields: dict[str, msgspec.Raw], decode: Callable[[bytes], _Body]) -> _Body:
    """The decoded body. Whole numbers that are written as decimals (3.0) become integers in `fields`, as OpenAI takes
    them and not every server does. Raises `msgspec.ValidationError`."""
    while True:
        try:
            return decode(raw)
        except msgspec.ValidationError as exc:
            name = _decimal_field(exc)
            whole = _whole(fields[name]) if name in fields else None
            if whole is None:
                raise
            fields[name] = whole
            raw = msgspec.json.encode(fields)


def _decimal_field(exc: msgspec.ValidationError) -> str:
    """The top-level field in which an integer was expected and a decimal found; empty if something else is wrong."""
    match = _WHERE.match(str(exc))
    if match is None or not match["path"] or "got `float`" not in match["what"]:
        return ""
    return re.split(r"[.\[]", match["path"], maxsplit=1)[0]


def _whole(raw: msgspec.Raw) -> msgspec.Raw | None:
    """The JSON `raw` with whole numbers as integers; None if it has none that were written as decimals."""
    value = msgspec.json.decode(raw)
    integers = _integers(value)
    encoded = msgspec.json.encode(integers)
    return None if encoded == msgspec.json.encode(value) else msgspec.Raw(encoded)


def _integers(value: Any) -> Any:
    if isinstance(value, list):
        return [_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value


def show(value: object) -> str:
    """A value for a message, as JSON, cut to a readable length."""
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.EncodeError, ValueError, OverflowError):
        text = repr(value)
    return shorten(text)


def _explain(raw: bytes, exc: msgspec.ValidationError) -> NoReturn:
    """Raises the error for a body with wrong types, with the field's path and its value."""
    match = _WHERE.match(str(exc))
    what, path = (match["what"], match["path"] or "") if match else (str(exc), "")
    if not path:
        raise InvalidRequest(f"The request body must be a JSON object: {_lower_first(what)}.") from exc
    if "out of range" in what:
        raise InvalidRequest(f"Invalid '{path}': the number is out of range.", param=path) from exc
    if absent := _ABSENT.search(what):
        raise MissingParameter(f"{path}.{absent[1]}") from exc
    expected = what.split(", got", 1)[0].replace("`", "").replace(" | null", "").replace(" | ", " or ")
    expected = _TYPE.sub(lambda found: _JSON_TYPES[found[0]], _lower_first(expected).removeprefix("expected "))
    try:
        value = show(_at(msgspec.json.decode(raw), path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        value = "something else"
    message = f"Invalid '{path}': expected {expected}, got {value}."
    raise InvalidRequest(message, param=path, code=RequestCode.TYPE) from exc


def _at(value: Any, path: str) -> object:
    for index, name in _STEP.findall(path):
        value = value[int(index)] if index else value[name]
    return value


def _lower_first(text: str) -> str:
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]
