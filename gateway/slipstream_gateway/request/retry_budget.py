"""How many attempts beyond their first the requests of one worker may make together, so that retries make no storm.

Finagle's retry budget: every request puts a share of a token into a bucket, every retry takes a whole one out, and
tokens grow old. Over any stretch of time there are then no more retries than that share of its requests, and a small
number per second besides, so that a gateway with little traffic may retry at all. A budget by what is in flight, as
Envoy's, does not hold back attempts that fail at once.

https://twitter.github.io/finagle/docs/com/twitter/finagle/service/RetryBudget$.html
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_AGE_S = 10.0


class RetryBudget:
    """`retry_share` of the requests may be tried again, and `retries_per_s`; tokens fade with a time constant of 10 s,
    as Finagle's do not outlive 10 s."""

    def __init__(
        self,
        *,
        retry_share: float = 0.2,
        retries_per_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spent = 0
        self.refused = 0
        self._retry_share = retry_share
        self._retries_per_s = retries_per_s
        self._clock = clock
        self._requests = 0
        self._tokens = retries_per_s * _AGE_S
        self._counted_s = clock()

    def deposit(self) -> None:
        """A request came."""
        self._requests += 1

    def allow(self) -> bool:
        """Takes a token for one more attempt; False: there is none, and the last error is the answer."""
        self._count()
        if self._tokens < 1.0:
            self.refused += 1
            return False
        self._tokens -= 1.0
        self.spent += 1
        return True

    def _count(self) -> None:
        """What came since the last look, as if it had come at an even pace, and what has faded since."""
        now_s = self._clock()
        elapsed_s = now_s - self._counted_s
        deposits = self._retry_share * self._requests
        if elapsed_s > 0.0:
            left = math.exp(-elapsed_s / _AGE_S)
            evenly = (1.0 - left) * _AGE_S / elapsed_s
            self._tokens = self._tokens * left + (deposits + self._retries_per_s * elapsed_s) * evenly
        else:
            self._tokens += deposits
        self._requests = 0
        self._counted_s = now_s
