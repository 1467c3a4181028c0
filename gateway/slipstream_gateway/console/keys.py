"""The limits of each key with their usage: over all gateways if Redis holds them, else of this one."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from slipstream_core.rate_limits import NANO_PER_USD, InUse, Limits

from slipstream_gateway.access import KeyedAccess, Principal

MOST_SHOWN = 200


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one limit; above the limit if an answer used more than expected."""

    used: float
    limit: float


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key by its public id and its name. None: no such limit."""

    id: str
    name: str
    requests_per_minute: Part | None
    tokens_per_minute: Part | None
    concurrent: Part | None
    usd_per_day: Part | None


class KeysView:
    """The valid keys of the file that have limits, `MOST_SHOWN` of them. None without access control."""

    def __init__(self, access: KeyedAccess | None) -> None:
        self._access = access

    async def section(self) -> Any:
        """The section as JSON; None without keys."""
        if self._access is None:
            return None
        limited = self._access.limited()
        keys = limited[:MOST_SHOWN]
        shared = await self._access.shared_usage(keys)
        if shared is None:
            rows = [_row(key, self._access.local_limits(key), self._access.local_usage(key)) for key in keys]
        else:
            rows = [_row(key, key.limits, usage) for key, usage in zip(keys, shared, strict=True)]
        return {
            "kept": "local" if shared is None else "redis",
            "rows": rows,
            "more": len(limited) - len(keys),
        }


def _row(key: Principal, limits: Limits, usage: InUse) -> KeyRow:
    return KeyRow(
        id=key.key_id,
        name=key.name,
        requests_per_minute=_part(_whole(usage.requests), limits.requests_per_minute),
        tokens_per_minute=_part(_whole(usage.tokens), limits.tokens_per_minute),
        concurrent=_part(usage.concurrent, limits.concurrent),
        usd_per_day=_part(usage.nano_usd / NANO_PER_USD, limits.usd_per_day),
    )


def _part(used: float, limit: float | None) -> Part | None:
    return None if limit is None else Part(used=used, limit=limit)


def _whole(used: float) -> int:
    """A partly recovered unit counts as used."""
    return math.ceil(used - 1e-3)
