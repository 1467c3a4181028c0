"""What an area of the gateway needs to show numbers of its own: instruments that are read when somebody looks.

An area keeps plain sums and hands in a callable; nothing is paid while a request runs. Attributes come from closed sets
or from the manifest, so that no client can add a series. An area's own file registers once, in the assembly:

    def observe_overload(meter: Meter, read: Callable[[], OverloadStatus]) -> None:
        gauge(meter, "slipstream.admission.limit", "Requests that may run at once.", lambda: [(read().limit, {})])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

Read = Callable[[], Iterable[tuple[float, Mapping[str, str]]]]
"""The present values, each with its attributes."""


def counter(meter: Meter, name: str, description: str, read: Read, *, unit: str = "") -> None:
    """A sum that only grows. Prometheus sees it as `<name>_<unit>_total`."""
    meter.create_observable_counter(name, [_observe(read)], unit, description)


def gauge(meter: Meter, name: str, description: str, read: Read, *, unit: str = "") -> None:
    """A value that goes up and down. Several workers' are added up; name it in `exposition.MEANS` or
    `exposition.MAXIMA` where that would be wrong."""
    meter.create_observable_gauge(name, [_observe(read)], unit, description)


def _observe(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, attributes) for value, attributes in read()]

    return observe
