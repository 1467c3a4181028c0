"""Open loops: requests arrive at their own times, whether or not the servers keep up.

In a closed loop a slow answer delays the next request, so that a slow mode gets less load. Here every mode gets the
same requests at the same times. Bursts arrive as a Poisson process, with one request in each or with several at once.
"""

from __future__ import annotations

import random
import re

import msgspec

PER_SECOND = "/s"
Load = int | str
"""A block's load: requests in flight in a closed loop, the name of the arrivals (`2.5/s`, `2.5x8/s`) in an open one."""

_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:x([0-9]+))?")
_MAX_RATE, _MAX_BURST = 10_000.0, 1024


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """`rate` requests per second on average, in bursts of `burst`."""

    rate: float
    burst: int = 1

    @property
    def name(self) -> str:
        return f"{self.rate:g}{f'x{self.burst}' if self.burst > 1 else ''}{PER_SECOND}"

    def times(self, count: int, seed: str) -> list[float]:
        """The seconds at which `count` requests arrive, the first burst after 0. The same seed gives the same times."""
        draws, now, times = random.Random(seed), 0.0, []
        for index in range(count):
            if index % self.burst == 0 and index:
                now += draws.expovariate(self.rate / self.burst)
            times.append(now)
        return times


def parse_arrivals(text: str) -> Arrivals:
    """`2.5` or, in bursts of 8, `2.5x8`. Raises `ValueError` with one sentence."""
    match = _FORM.fullmatch(text.strip())
    rate, burst = (float(match[1]), int(match[2] or 1)) if match else (0.0, 1)
    if not 0.0 < rate <= _MAX_RATE or not 1 <= burst <= _MAX_BURST:
        raise ValueError(
            f"arrivals are RATE or RATExBURST, with a rate above 0 and up to {_MAX_RATE:g} requests per second and a "
            f"burst of 1 to {_MAX_BURST}, got {text!r}"
        )
    return Arrivals(rate=rate, burst=burst)


def load_name(load: Load) -> str:
    """`load` within a sentence."""
    return load if isinstance(load, str) else f"concurrency {load}"


class InFlight:
    """The number of requests in flight, and its mean over any time span since `mark`."""

    def __init__(self) -> None:
        self._count = 0
        self._area = self._until_s = 0.0

    def change(self, by: int, now_s: float) -> float:
        """`by` requests more. Returns: the requests in flight times seconds up to now."""
        self._area += self._count * (now_s - self._until_s)
        self._count += by
        self._until_s = now_s
        return self._area
