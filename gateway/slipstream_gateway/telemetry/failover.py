"""Streams that broke off after their first byte, by cause and by what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import Meter

from slipstream_gateway.request.resume import ResumptionCount
from slipstream_gateway.telemetry.instruments import counter


def observe_failover(meter: Meter, read: Callable[[], Iterable[ResumptionCount]]) -> None:
    """Shows what `read` tells when somebody looks."""
    counter(
        meter,
        "slipstream.resumed",
        "Streams that broke off after their first byte, by cause and by what became of them.",
        lambda: [
            (
                found.count,
                {
                    "pair": found.pair,
                    "class": found.request_class,
                    "cause": found.cause,
                    "result": str(found.result),
                },
            )
            for found in read()
        ],
    )
