"""Request headers that override the gateway's own decisions, and `x-request-timeout`, the time in seconds that a client
waits for its answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from slipstream_core.errors import InvalidRequest, shorten
from slipstream_core.manifest.objects import MAX_DRAFT_TOKENS
from slipstream_core.types import Mode

from slipstream_gateway.api.body import show


class RequestOverrides(NamedTuple):
    """The header values as received: `x-slipstream-mode`, `x-slipstream-draft-length` and `x-slipstream-learn`."""

    mode: str | None = None
    draft_length: str | None = None
    learn: str | None = None


NO_OVERRIDES = RequestOverrides()
_MODES: Mapping[str, Mode] = {str(mode): mode for mode in Mode}


def mode_of(value: str | None) -> Mode:
    """The mode in the header's value. Raises `InvalidRequest`."""
    if value is None:
        return Mode.AUTO
    mode = _MODES.get(value.strip().lower())
    if mode is None:
        message = f"Invalid header 'x-slipstream-mode': expected {', '.join(_MODES)}, got {show(value)}."
        raise InvalidRequest(message, param="x-slipstream-mode")
    return mode


def draft_length_of(value: str | None) -> int | None:
    """The draft length in the header's value. Raises `InvalidRequest`."""
    if value is None:
        return None
    text = value.strip()
    if len(text) > 2 or not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MAX_DRAFT_TOKENS:
        message = f"Invalid header 'x-slipstream-draft-length': expected 1 to {MAX_DRAFT_TOKENS}, got {show(value)}."
        raise InvalidRequest(message, param="x-slipstream-draft-length")
    return int(text)


def learn_of(value: str | None) -> bool:
    """Whether the outcome may be learned from, by the header's value. Raises `InvalidRequest`."""
    if value is None:
        return True
    word = value.strip().lower()
    if word not in ("on", "off"):
        message = f"Invalid header 'x-slipstream-learn': expected on, off, got {show(value)}."
        raise InvalidRequest(message, param="x-slipstream-learn")
    return word == "on"


HEADER = "x-request-timeout"
LONGEST_S = 86_400.0
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def deadline_of(value: str | None, *, now_s: float) -> float | None:
    """The instant at which the client stops waiting, by the clock of `now_s`; None without the header.

    Raises `InvalidRequest` with the header's name and value if that is not a decimal number of seconds above 0.
    """
    if value is None:
        return None
    seconds = float(value) if _DECIMAL.fullmatch(value) else 0.0
    if not 0.0 < seconds <= LONGEST_S:
        expected = f"expected seconds above 0, at most {LONGEST_S:g}, such as 2.5"
        raise InvalidRequest(f"Invalid header '{HEADER}': {expected}, got '{shorten(value)}'.", param=HEADER)
    return now_s + seconds
