"""Models that went away while clients used them."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.metrics import Meter

from slipstream_gateway.telemetry.instruments import counter


def observe_departures(meter: Meter, read: Callable[[], int]) -> None:
    """Shows what `read` tells when somebody looks."""
    counter(
        meter,
        "slipstream.models.removed_in_use",
        "Model names that were removed, or renamed, while clients used them.",
        lambda: [(read(), {})],
    )
