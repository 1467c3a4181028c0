"""The header `x-request-timeout`: the time in seconds that a client waits for its answer."""

from __future__ import annotations

import re

from slipstream_core.errors import InvalidRequest, shorten

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
