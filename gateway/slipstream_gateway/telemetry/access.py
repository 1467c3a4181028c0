"""Who was refused and why, what each key used, and who decides on limits."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.metrics import Meter
from slipstream_core.rate_limits import NANO_PER_USD

from slipstream_gateway.access import AccessStatus
from slipstream_gateway.telemetry.instruments import counter, gauge

_PREFIX = "slipstream.access."


def observe_access(meter: Meter, read: Callable[[], AccessStatus]) -> None:
    """`key` is a key's public id, from the file of keys or of a token's subject; of at most 1,000, then `other`."""
    counter(
        meter,
        f"{_PREFIX}denied",
        "Requests refused, by what refused them.",
        lambda: [(count, {"cause": cause}) for cause, count in read().denied.items()],
    )
    counter(
        meter,
        f"{_PREFIX}requests",
        "Requests that were let in.",
        lambda: [(use.requests, {"key": key}) for key, use in read().used.items()],
    )
    counter(
        meter,
        f"{_PREFIX}tokens",
        "Tokens of prompts and answers.",
        lambda: [(use.tokens, {"key": key}) for key, use in read().used.items()],
    )
    counter(
        meter,
        f"{_PREFIX}cost",
        "What the tokens cost by the prices in the file of keys.",
        lambda: [(use.nano_usd / NANO_PER_USD, {"key": key}) for key, use in read().used.items()],
        unit="usd",
    )
    gauge(meter, f"{_PREFIX}keys", "Keys in the file that is in force.", lambda: [(read().keys, {})])
    counter(
        meter,
        "slipstream.limits.decided",
        "Decisions on limits, by who made them.",
        lambda: [(count, {"by": by}) for by, count in read().decided.items()],
    )
    gauge(
        meter,
        "slipstream.limits.shared",
        "Whether the replicas decide on limits together.",
        lambda: [(int(shared), {}) for shared in (read().shared,) if shared is not None],
    )
