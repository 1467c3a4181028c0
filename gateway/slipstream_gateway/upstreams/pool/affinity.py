"""Requests with the same head go to the same replica, which has it in its prefix cache; no replica gets far more than
its share. Rendezvous hashing (Thaler, Ravishankar 1998) with bounded loads (Mirrokni and others, arXiv:1608.01350)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

from slipstream_core.types import GenerationRequest

HEAD_CHARS = 1024
"""The part of a prompt that requests must share to go to one replica."""
HEAD_TOKENS = 256  # of a prompt of token ids
LOAD_FACTOR = 1.25
"""The largest load of a replica, as a multiple of the mean."""
FREE_REQUESTS = 2
"""A replica can always have this number of requests: at low load the mean says little."""
_MASK = (1 << 64) - 1


def head_key(request: GenerationRequest) -> int:
    """64 bits that are equal for requests whose prompts begin equally. Of a chat, the messages up to the user's first
    one count, so that a conversation keeps its key."""
    digest = blake2b(digest_size=8)
    if isinstance(request.prompt, tuple):
        digest.update(repr(request.prompt[:HEAD_TOKENS]).encode())
    elif request.prompt is not None:
        digest.update(request.prompt[:HEAD_CHARS].encode("utf-8", "replace"))
    left = HEAD_CHARS
    for message in request.messages:
        digest.update(f"\0{message.role}\0{message.content[:left]}".encode("utf-8", "replace"))
        left -= len(message.content)
        if left <= 0 or message.role == "user":
            break
    return int.from_bytes(digest.digest(), "big")


class Affinity:
    """The order in which the replicas `names` are preferred for a key. A replica that comes or goes changes the first
    place of only those keys that it has."""

    def __init__(self, names: Sequence[str]) -> None:
        self._salts = [int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") | 1 for name in names]

    def preferred(self, key: int, costs: Sequence[float], loads: Sequence[int]) -> int | None:
        """The index of the most preferred replica that is not too full. `loads` are the requests of each replica,
        `costs` the same with this one, more for a replica that fails, and infinite for one that cannot take it. None:
        none can."""
        usable = [load for load, cost in zip(loads, costs, strict=True) if cost < math.inf]
        if not usable:
            return None
        limit = max(int(LOAD_FACTOR * (sum(usable) + 1) / len(usable)), FREE_REQUESTS)
        best, highest = None, -1
        for index, cost in enumerate(costs):
            if cost <= limit and (score := key * self._salts[index] & _MASK) > highest:
                best, highest = index, score
        return costs.index(min(costs)) if best is None else best
