"""What admission, the retry budget and passive health add to a request that nobody keeps waiting.

`steps()` gives one callable per part; `access.py` times them together with the keys and limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from slipstream_gateway.admission import Admission, Sample
from slipstream_gateway.request.retry_budget import RetryBudget
from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.pool import Pool, Replica

PAIR = "acme"
REPLICAS = 4
IN_FLIGHT = 32


def steps() -> dict[str, Callable[[], None]]:
    """What a request runs through, by part; each with `IN_FLIGHT` others in flight."""
    admission = Admission(max_in_flight=512, max_queued=512, queue_timeout_s=5.0)
    for _ in range(IN_FLIGHT):
        admission.try_enter(PAIR)
    sample = Sample(prompt_size=2000, ttft_s=0.05, e2e_s=1.0, output_tokens=100)
    budget = RetryBudget()
    nothing = cast(Upstream, None)  # a pool never calls its servers
    pool = Pool([Replica(f"http://10.0.0.{n}:8000", nothing) for n in range(REPLICAS)], clock=time.monotonic)

    def admit() -> None:
        admission.try_enter(PAIR)
        admission.pressure(PAIR)
        admission.leave(PAIR, sample)

    def health() -> None:
        replica = pool.pick()
        if replica is None:
            raise RuntimeError("the pool has no replica")
        replica.acquire(0, time.perf_counter())
        replica.succeeded(time.monotonic(), ttft_s=0.05)
        replica.completed(time.monotonic())
        replica.release(0, time.perf_counter())

    return {"admission": admit, "retry budget": budget.deposit, "pick and health": health}
