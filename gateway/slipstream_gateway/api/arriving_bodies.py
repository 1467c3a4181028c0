"""A bound on the request bodies of one key that arrive at the same time."""

from __future__ import annotations

from collections import Counter

from slipstream_core.errors import Overloaded

from slipstream_gateway.access import Principal
from slipstream_gateway.api.http import Receive, RequestHeaders, read_body


class ArrivingBodies:
    """Reads bodies under `limit_bytes`. Each body that arrives slowly holds a connection, which this worker has a
    limited number of: a key may hold `per_key` of them, so that connections are left for others. Without keys there is
    no such bound, because callers cannot be distinguished."""

    def __init__(self, *, limit_bytes: int, per_key: int) -> None:
        self._limit_bytes = limit_bytes
        self._per_key = per_key
        self._arriving: Counter[str] = Counter()

    async def read(self, headers: RequestHeaders, receive: Receive, principal: Principal) -> bytes:
        """The whole body. Raises what `read_body` raises, and `Overloaded`."""
        key = principal.key_id
        if not key:
            return await read_body(headers, receive, self._limit_bytes)
        if self._arriving[key] >= self._per_key:
            raise Overloaded(f"This key sends {self._per_key} request bodies at once already; finish some first.")
        self._arriving[key] += 1
        try:
            return await read_body(headers, receive, self._limit_bytes)
        finally:
            self._arriving[key] -= 1
            if not self._arriving[key]:
                del self._arriving[key]
