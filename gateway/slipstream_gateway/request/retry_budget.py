"""A budget for the retries of all requests of one gateway, which prevents retry storms.

Finagle's retry budget: each request deposits a share of a token into a bucket, each retry withdraws a whole token, and
tokens expire. So in any period the number of retries is at most that share of its requests, plus a small number per
second, which permits retries under little traffic. A budget by requests in flight, such as Envoy's, does not limit
attempts that fail at once.

https://twitter.github.io/finagle/docs/com/twitter/finagle/service/RetryBudget$.html
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_AGE_S = 10.0


class RetryBudget:
    """Permits retries of `retry_share` of the requests, plus `retries_per_s`; none at all with a share of 0. Tokens
    decay with a time constant of 10 s; Finagle's expire after 10 s."""

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
        self._retries_per_s = retries_per_s if retry_share else 0.0
        self._clock = clock
        self._requests = 0
        self._tokens = self._retries_per_s * _AGE_S
        self._counted_s = clock()

    @property
    def is_none(self) -> bool:
        """Whether no retry is ever permitted."""
        return not self._retry_share

    def deposit(self) -> None:
        """Counts a request."""
        self._requests += 1

    def allow(self) -> bool:
        """Takes a token for one more attempt. False: there is none, and the last error is returned to the client."""
        self._count()
        if self._tokens < 1.0:
            self.refused += 1
            return False
        self._tokens -= 1.0
        self.spent += 1
        return True

    def _count(self) -> None:
        """Adds the deposits since the last call, as if evenly spread over the time, and applies the decay."""
        now_s = self._clock()
        elapsed_s = now_s - self._counted_s
        deposits = self._retry_share * self._requests
        if elapsed_s > 0.0:
            lost = -math.expm1(-elapsed_s / _AGE_S)  # exact also for the shortest times
            evenly = lost * _AGE_S / elapsed_s
            self._tokens = self._tokens * (1.0 - lost) + (deposits + self._retries_per_s * elapsed_s) * evenly
        else:
            self._tokens += deposits
        self._requests = 0
        self._counted_s = now_s
