"""Where limits are decided: by all replicas together while Redis is reachable, otherwise by this process alone; and the
decisions in HTTP responses: OpenAI's `x-ratelimit-*` headers and the messages of refusals.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from slipstream_core.errors import LimitReached
from slipstream_core.rate_limits import Charge, Grant, InUse, LimitName, Limits, Refusal, Room, Use

from slipstream_gateway.access.local_limits import LocalLimits

_OPEN = Grant()


class SharedLimits(Protocol):
    """Limits that the replicas share."""

    @property
    def connected(self) -> bool: ...

    async def admit(self, key_id: str, limits: Limits, charge: Charge) -> Grant | Refusal | None:
        """The result; None if Redis did not respond within the deadline, or has failed recently."""
        ...

    def settle(self, use: Use) -> None:
        """Frees the places and corrects the charge. Never waits, never raises."""
        ...

    async def usage(self, callers: Sequence[tuple[str, Limits]]) -> Sequence[InUse] | None:
        """The usage per caller, in their order, for display; None if Redis is unreachable."""
        ...

    async def run(self) -> None:
        """Renews the held places, until cancelled."""
        ...

    async def aclose(self) -> None: ...


class Limiter:
    """Uses `shared` first, then the local limits. A grant is settled where it was made."""

    def __init__(self, local: LocalLimits, shared: SharedLimits | None = None) -> None:
        self.local = local
        self.shared = shared

    async def admit(self, key_id: str, limits: Limits, charge: Charge) -> Grant | Refusal:
        if limits.is_open:
            return _OPEN
        if self.shared is not None:
            verdict = await self.shared.admit(key_id, limits, charge)
            if verdict is not None:
                return verdict
        return self.local.admit(key_id, limits, charge)

    def settle(self, use: Use) -> None:
        if use.limits.is_open:
            return
        if not use.grant.shared:
            self.local.settle(use)
        if self.shared is not None:
            self.shared.settle(use)


Header = tuple[bytes, bytes]

_MESSAGES = {
    LimitName.REQUESTS: "Rate limit reached: requests per minute.",
    LimitName.TOKENS: "Rate limit reached: tokens per minute.",
    LimitName.CONCURRENT: "Rate limit reached: concurrent requests.",
    LimitName.BUDGET: "You exceeded your budget for today (UTC), or this request may cost more than the remainder.",
}
_NEVER = {
    LimitName.TOKENS: "Request too large for the limit on tokens per minute: its prompt alone has about {tokens}.",
    LimitName.CONCURRENT: "Request too large for the limit on concurrent requests: it needs {places}, one per choice.",
    LimitName.BUDGET: "Request too large for the daily budget: its prompt alone may cost more.",
}


def rate_headers(grant: Grant | Refusal) -> tuple[Header, ...]:
    """The caller's limits and remainders under OpenAI's header names; none for a caller without rates."""
    requests = () if grant.requests is None else _room(b"requests", grant.requests)
    return requests if grant.tokens is None else (*requests, *_room(b"tokens", grant.tokens))


def limit_reached(refusal: Refusal, charge: Charge) -> LimitReached:
    message = _MESSAGES[refusal.limit]
    if refusal.retry_after_s is None:
        message = _NEVER.get(refusal.limit, message).format(
            tokens=charge.tokens - charge.output_tokens, places=charge.places
        )
    return LimitReached(
        message, limit=str(refusal.limit), retry_after_s=refusal.retry_after_s, headers=rate_headers(refusal)
    )


def _room(what: bytes, room: Room) -> tuple[Header, ...]:
    return (
        (_name(b"limit", what), b"%d" % room.limit),
        (_name(b"remaining", what), b"%d" % room.remaining),
        (_name(b"reset", what), _duration(room.reset_s)),
    )


@lru_cache(maxsize=16)
def _name(kind: bytes, what: bytes) -> bytes:
    return b"x-ratelimit-%s-%s" % (kind, what)


def _duration(seconds: float) -> bytes:
    """A duration in OpenAI's form: `120ms`, `1s`, `6m0s`."""
    if seconds < 1.0:
        return b"%dms" % round(seconds * 1000)
    if seconds < 60.0:
        return b"%.4gs" % seconds
    minutes, rest = divmod(round(seconds), 60)
    return b"%dm%ds" % (minutes, rest)
