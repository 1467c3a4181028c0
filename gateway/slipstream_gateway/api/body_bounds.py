"""Limits on the number of values in a JSON body, checked before it is decoded.

Decoding and validation cost time per value: 300,000 fields in 3.5 MB took over a second and blocked all other requests
of the worker. The count works on whole bytes without decoding: it removes escapes first, so that each remaining
quotation mark begins or ends a string. It is exact for valid JSON, and for the valid beginning of an invalid body.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from slipstream_core.errors import InvalidRequest

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
