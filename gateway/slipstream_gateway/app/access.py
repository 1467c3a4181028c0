"""The gate: open without keys; with them, their file, and limits by Redis where there is one."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, nullcontext

from slipstream_core.settings import GatewaySettings

from slipstream_gateway.access import Gate, KeyFile, Limiter, LocalLimits, SharedLimits, SharedUsage
from slipstream_gateway.api.gatekeeper import OPEN_GATE, Gatekeeper
from slipstream_gateway.telemetry.audit import Audit

_KEPT = "last-good-keys.json"


def build_gate(settings: GatewaySettings, audit: Audit) -> Gatekeeper:
    if settings.access.keys is None:
        return OPEN_GATE
    folder = settings.metrics_folder
    keys = KeyFile(settings.access.keys, settings.access.pepper, kept=folder / _KEPT if folder is not None else None)
    return Gate(
        keys,
        Limiter(LocalLimits(parts=settings.workers), *_shared(settings)),
        clock=time.time,
        told=lambda number: audit.event("keys", who="file", keys=number),
    )


def running(gate: Gatekeeper) -> AbstractAsyncContextManager[object]:
    """The time in which `gate` follows its file."""
    return gate if isinstance(gate, Gate) else nullcontext()


def _shared(settings: GatewaySettings) -> tuple[SharedLimits | None, SharedUsage | None]:
    """Redis' client is loaded only where it is used."""
    if settings.redis_url is None:
        return None, None
    from slipstream_core.redis.limit_usage import RedisUsage
    from slipstream_core.redis.redis_limits import RedisLimits

    return RedisLimits(settings.redis_url), RedisUsage(settings.redis_url)
