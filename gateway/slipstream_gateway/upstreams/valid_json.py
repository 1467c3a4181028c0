"""Makes JSON of the two things that servers send in its place, the same in whole answers and in streams.

Python's `json` writes NaN, Infinity and -Infinity, which are not JSON: `JSON.parse` and most other parsers refuse the
whole answer or event. They become null, as `JSON.stringify` writes them. The escape of half a surrogate pair, as in
"\\ud83d", is valid by the grammar, but has no meaning (RFC 8259, 8.2): many parsers refuse it, and Python's returns a
text that cannot be encoded. It becomes U+FFFD.
"""

from __future__ import annotations

import re

from slipstream_gateway.upstreams.sse import split_events

# The closing quotation mark is optional, so that the time is linear in the length whatever a server sends.
_TEXT_OR_NUMBER = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|-?Infinity|NaN', re.DOTALL)
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_REPLACEMENT = rb"\ufffd"
_DATA = b"data:"


def valid_json(body: bytes) -> bytes:
    """`body`, a whole JSON text, with valid numbers and characters; fast if it has them already."""
    return _TEXT_OR_NUMBER.sub(_valid, body) if _may_be_invalid(body) else body


def valid_events(block: bytes) -> bytes:
    """A block of whole events, the data of each with valid numbers and characters."""
    return b"".join(map(_valid_event, split_events(block))) if _may_be_invalid(block) else block


def _valid_event(event: bytes) -> bytes:
    """A line end cannot stand within a text of JSON, so that each line of data has whole texts."""
    if not _may_be_invalid(event):
        return event
    return b"\n".join([valid_json(line) if line.startswith(_DATA) else line for line in event.split(b"\n")])


def _may_be_invalid(data: bytes) -> bool:
    return b"\\ud" in data or b"NaN" in data or b"Infinity" in data or b"\\uD" in data


def _valid(found: re.Match[bytes]) -> bytes:
    text = found[0]
    if not text.startswith(b'"'):
        return b"null"
    return _ESCAPE.sub(_whole, text) if b"\\u" in text else text


def _whole(found: re.Match[bytes]) -> bytes:
    return found[0] if found[1] is None else _REPLACEMENT
