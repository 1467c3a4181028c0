"""The keys of estimates."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from slipstream_core.observation import Subject
from slipstream_core.types import RequestProfile

_CACHE_ENTRIES = 512


def subject_of(
    profile: RequestProfile,
    temperature: float,
    *,
    pair: str,
    key_id: str = "",
    adapter: str = "",
) -> Subject:
    """The key of the estimates of a request.

    `key_id` is the public id of its API key, empty for callers that are not authenticated: all of them count as one,
    because a client could invent keys. An `adapter` has estimates of its own: its answers are others, and the draft
    fits it worse. The result is the same on every replica.
    """
    return Subject(
        pair=pair,
        cold_class=profile.request_class,
        temperature=temperature_bucket(temperature),
        key=_name_digest(key_id) if key_id else "",
        adapter=_name_digest(adapter) if adapter else "",
    )


@lru_cache(maxsize=_CACHE_ENTRIES)
def _name_digest(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def temperature_bucket(temperature: float) -> int:
    """0: greedy, 1: up to 0.5, 2: up to 1, 3: hotter."""
    return 0 if temperature <= 0 else 1 if temperature <= 0.5 else 2 if temperature <= 1 else 3
