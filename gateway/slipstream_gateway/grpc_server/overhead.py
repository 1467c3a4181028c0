"""A bound on the frames of a client that carry nothing."""

from __future__ import annotations

from collections.abc import Callable

from slipstream_gateway.grpc_server.frames import BrokenProtocol, ErrorCode

BURST_FRAMES = 10_000
FRAMES_PER_S = 1_000
FRAMES_PER_ANSWER = 10
"""Envoy allows a client as many WINDOW_UPDATE frames for each DATA frame that it gets."""


class Overhead:
    """Counts frames that carry no message: control frames, heads and resets of calls, empty frames.

    A client may send `BURST_FRAMES`, then `FRAMES_PER_S` per second, and `FRAMES_PER_ANSWER` more for each DATA frame
    that it gets: a call that is answered pays for its own. Floods pay for nothing (CVE-2019-9511 to 9518,
    CVE-2023-44487, CVE-2024-27316). `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(BURST_FRAMES)
        self._at_s = clock()

    def spend(self) -> None:
        """Counts a frame. Raises `BrokenProtocol` if the client has sent too many."""
        self._left -= 1
        if self._left >= 0:
            return
        now_s = self._clock()
        self._left = min(self._left + (now_s - self._at_s) * FRAMES_PER_S, BURST_FRAMES)
        self._at_s = now_s
        if self._left < 0:
            raise BrokenProtocol(ErrorCode.ENHANCE_YOUR_CALM, "a client sends too many frames without a message")

    def earn(self) -> None:
        """Counts a DATA frame that the client gets."""
        self._left = min(self._left + FRAMES_PER_ANSWER, BURST_FRAMES)
