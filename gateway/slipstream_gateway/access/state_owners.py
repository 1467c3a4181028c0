"""The owners of stored responses: a key may name only responses and items that it made, and what its scopes name.

Servers store responses and do not know the gateway's keys. The gateway remembers the ids in the answers of each key,
and refuses all others alike: an id of another key's is as unknown as one that does not exist. Conversations, files and
prompts are made without the gateway, so no key has made one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

from slipstream_core.errors import InvalidRequest, RequestCode, UpstreamUnavailable, shorten

MOST_KEYS = 1_000
MOST_IDS = 1_000
"""Per key, in this process. In Redis a key has more."""
MOST_IDS_IN_ALL = 100_000
_ID_CHARS = 512
_RETRY_S = 2.0
MOST_NAMED = 256
"""Of one request, so that none makes the gateway or Redis search for thousands."""


class SharedOwners(Protocol):
    """Owners that all replicas know."""

    async def add(self, owner: str, hashes: Sequence[bytes]) -> None: ...

    async def has(self, owner: str, hashes: Sequence[bytes]) -> bool | None:
        """None: it cannot be said now."""
        ...

    async def aclose(self) -> None: ...


class StateOwners:
    """The ids that each key made, in this process and in `shared`. The oldest are forgotten first."""

    def __init__(self, shared: SharedOwners | None = None) -> None:
        self._own: dict[str, dict[bytes, None]] = {}
        self._shared = shared

    async def add(self, owner: str, ids: Sequence[str]) -> None:
        """Never raises."""
        hashes = _hashes(ids)
        own = self._own[owner] = self._own.pop(owner, {})  # the key that made one last is the last to be forgotten
        own.update(dict.fromkeys(hashes))
        for old in list(own)[: max(len(own) - MOST_IDS, 0)]:
            del own[old]
        while len(self._own) > MOST_KEYS or sum(map(len, self._own.values())) > MOST_IDS_IN_ALL:
            del self._own[next(iter(self._own))]
        if self._shared is not None:
            await self._shared.add(owner, hashes)

    async def check(self, owner: str, ids: Sequence[str]) -> None:
        """Raises `InvalidRequest` unless `owner` made all of `ids`; `UpstreamUnavailable` while `shared` cannot say."""
        if len(ids) > MOST_NAMED:
            message = f"A request may name {MOST_NAMED} responses and items at most, got {len(ids)}."
            raise InvalidRequest(message, code=RequestCode.ARRAY_TOO_LONG)
        unknown = [one for one in ids if _hash(one) not in self._own.get(owner, ())]
        if not unknown:
            return
        has = False if self._shared is None else await self._shared.has(owner, _hashes(unknown))
        if has is None:
            message = "The owner of stored state cannot be looked up at present. Try again later."
            raise UpstreamUnavailable(message, retry_after_s=_RETRY_S)
        if has:
            return
        message = f"Stored state with the id '{shorten(unknown[0])}' was not found among that of this key."
        raise InvalidRequest(message, code=RequestCode.STATE_NOT_FOUND)

    async def aclose(self) -> None:
        if self._shared is not None:
            await self._shared.aclose()


def _hashes(ids: Sequence[str]) -> list[bytes]:
    return [_hash(one) for one in ids]


def _hash(text: str) -> bytes:
    """Of a fixed size, since servers choose the ids; clients may send longer ones."""
    return sha256(text[:_ID_CHARS].encode(errors="surrogatepass")).digest()[:16]
