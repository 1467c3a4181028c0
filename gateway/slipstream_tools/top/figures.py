"""The console's sections as `slipstream top` reads them: the fields that it shows, and nothing else.

A gateway of another version may say more; what it does not say is what the field's default says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from slipstream_core.errors import CommandError


class Gateway(msgspec.Struct, frozen=True):
    """The gateway as a whole."""

    version: str = ""
    workers: int = 1
    in_flight: int = 0
    queued: int = 0
    origin: str = ""
    connected: bool = True


class Kill(msgspec.Struct, frozen=True):
    """A kill switch that an admin turned on."""

    at: str
    by: str
    reason: str = ""


class Pair(msgspec.Struct, frozen=True):
    """A pair that is served."""

    pair: str
    model: str
    has_draft: bool = True
    ready: bool = True
    status: str = ""
    killed: bool = False
    kill: Kill | None = None


class Row(msgspec.Struct, frozen=True):
    """One class and arm; the lists are by bucket, oldest first."""

    pair: str
    request_class: str
    arm: str
    requests: list[int]
    drafted: list[int]
    accepted: list[int]
    failed: int = 0


class Traffic(msgspec.Struct, frozen=True):
    """Requests over the window."""

    bucket_s: int = 15
    recent_buckets: int = 4
    rows: list[Row] = []


class Effect(msgspec.Struct, frozen=True):
    """Control over speculative in one measure; None where there is not enough data."""

    speed_up: float | None = None
    speed_up_low: float | None = None
    speed_up_high: float | None = None


class ClassEffects(msgspec.Struct, frozen=True):
    """What speculation brings in one class."""

    request_class: str
    ttft_s: Effect = Effect()
    tpot_s: Effect = Effect()
    e2e_s: Effect = Effect()


class SpeedUp(msgspec.Struct, frozen=True):
    """The same for a pair, class by class and over all of them."""

    pair: str
    overall: ClassEffects
    classes: list[ClassEffects] = []


class Latency(msgspec.Struct, frozen=True):
    """Percentiles of one arm and measure, in seconds."""

    pair: str
    arm: str
    measure: str
    p50_s: float
    p95_s: float
    p99_s: float


class Seat(msgspec.Struct, frozen=True):
    """A server of one arm."""

    pair: str
    arm: str
    server: str
    outstanding: int = 0
    circuit: str = "closed"
    cause: str | None = None


class Figures(msgspec.Struct, frozen=True):
    """Everything that a frame shows."""

    gateway: Gateway = Gateway()
    pairs: list[Pair] = []
    traffic: Traffic = Traffic()
    speed_up: list[SpeedUp] = []
    latency: list[Latency] = []
    pools: list[Seat] = []


def figures_of(sections: Mapping[str, Any]) -> Figures:
    """Raises `CommandError` where the sections are none that a gateway sends."""
    try:
        return msgspec.convert(sections, Figures)
    except msgspec.ValidationError as exc:
        raise CommandError(f"what answers there is no gateway that this version understands: {exc}") from exc
