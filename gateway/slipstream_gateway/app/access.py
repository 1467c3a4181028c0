"""Builds the access control: open without a key file, otherwise keyed, with limits in Redis if it is configured."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, nullcontext

from slipstream_core.settings import GatewaySettings

from slipstream_gateway.access import KeyedAccess, KeyFile, Limiter, LocalLimits, SharedLimits, SharedUsage
from slipstream_gateway.api.access_control import OPEN_ACCESS, AccessControl
from slipstream_gateway.telemetry.audit import Audit

_KEPT = "last-good-keys.json"


def build_access(settings: GatewaySettings, audit: Audit) -> AccessControl:
    if settings.access.keys is None:
        return OPEN_ACCESS
    folder = settings.metrics_folder
    keys = KeyFile(settings.access.keys, settings.access.pepper, kept=folder / _KEPT if folder is not None else None)
    return KeyedAccess(
        keys,
        Limiter(LocalLimits(parts=settings.workers), *_shared(settings)),
        clock=time.time,
        on_reload=lambda number: audit.event("keys", who="file", keys=number),
    )


def running(access: AccessControl) -> AbstractAsyncContextManager[object]:
    """The context in which `access` follows its file."""
    return access if isinstance(access, KeyedAccess) else nullcontext()


def _shared(settings: GatewaySettings) -> tuple[SharedLimits | None, SharedUsage | None]:
    """Redis' client is imported only if it is used."""
    if settings.redis_url is None:
        return None, None
    from slipstream_core.redis.limit_usage import RedisUsage
    from slipstream_core.redis.redis_limits import RedisLimits

    return RedisLimits(settings.redis_url), RedisUsage(settings.redis_url)
