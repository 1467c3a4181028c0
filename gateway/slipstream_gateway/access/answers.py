"""What limits look like to a client: OpenAI's `x-ratelimit-*` headers and the words of a refusal."""

from __future__ import annotations

from functools import lru_cache

from slipstream_core.errors import LimitReached
from slipstream_core.rate_limits import Charge, Grant, LimitName, Refusal, Room

Header = tuple[bytes, bytes]

_WORDS = {
    LimitName.REQUESTS: "Rate limit reached: requests per minute.",
    LimitName.TOKENS: "Rate limit reached: tokens per minute.",
    LimitName.CONCURRENT: "Rate limit reached: concurrent requests.",
    LimitName.BUDGET: "You exceeded your budget for today (UTC), or this request may cost more than is left of it.",
}
_NEVER = {
    LimitName.TOKENS: "Request too large for the limit on tokens per minute: its prompt alone is about {tokens}.",
    LimitName.CONCURRENT: "Request too large for the limit on concurrent requests: it takes {places}, one per choice.",
    LimitName.BUDGET: "Request too large for the budget of a day: its prompt alone may cost more than that.",
}


def rate_headers(grant: Grant | Refusal) -> tuple[Header, ...]:
    """Where a caller stands, as OpenAI names it; nothing where it has no rates."""
    requests = () if grant.requests is None else _room(b"requests", grant.requests)
    return requests if grant.tokens is None else (*requests, *_room(b"tokens", grant.tokens))


def limit_reached(refusal: Refusal, charge: Charge) -> LimitReached:
    message = _WORDS[refusal.limit]
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
    """As OpenAI writes it: `120ms`, `1s`, `6m0s`."""
    if seconds < 1.0:
        return b"%dms" % round(seconds * 1000)
    if seconds < 60.0:
        return b"%.4gs" % seconds
    minutes, rest = divmod(round(seconds), 60)
    return b"%dm%ds" % (minutes, rest)
