"""A clock that the test moves."""

from __future__ import annotations


class Clock:
    """Seconds, by `now_s`. They do not begin at 0, which code might take for no time at all."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
