"""How far a long run has come, and when it will be done: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

_REDRAW_S = 0.1
_LINE_S = 30.0
_BAR_CHARS = 28


class Progress:
    """Counts to `total`. What is left is estimated from the pace of this session alone."""

    def __init__(self, *, total: int, stream: TextIO, label: str = "") -> None:
        self._total = total
        self._stream = stream
        self._label = label
        self._done = 0
        self._tty = stream.isatty()
        self._started_s = self._drawn_s = time.monotonic()
        self._drawn_tenth = 0

    def advance(self) -> None:
        """One more is done."""
        self._done += 1
        now_s = time.monotonic()
        if self._tty:
            if now_s - self._drawn_s >= _REDRAW_S or self._done == self._total:
                self._drawn_s = now_s
                self._stream.write(f"\r{self._bar()} {self._text(now_s)}\x1b[K")
                self._stream.flush()
            return
        tenth = self._done * 10 // self._total
        if tenth > self._drawn_tenth or now_s - self._drawn_s >= _LINE_S:
            self._drawn_tenth, self._drawn_s = tenth, now_s
            print(f"slipstream: {self._text(now_s)}", file=self._stream, flush=True)

    def close(self) -> None:
        """Ends the bar's line."""
        if self._tty and self._done:
            print(file=self._stream, flush=True)

    def _bar(self) -> str:
        filled = self._done * _BAR_CHARS // self._total
        return f"[{'█' * filled}{'·' * (_BAR_CHARS - filled)}]"

    def _text(self, now_s: float) -> str:
        left_s = (now_s - self._started_s) / self._done * (self._total - self._done)
        label = f"{self._label}: " if self._label else ""
        return f"{label}{self._done} of {self._total}, {clock(left_s)} left"


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`, or `0:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
