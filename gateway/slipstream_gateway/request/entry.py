"""What comes to the director with a request, and what it gives back before the answer."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_core.types import ANONYMOUS, Caller, Decision, RequestProfile

from slipstream_gateway.fleet.fleet import Snapshot
from slipstream_gateway.request.exchange import Exchange


class Context(NamedTuple):
    """What came with a request besides its body. `authorization` goes to HTTP upstreams as it came. `deadline_s` is
    the `time.monotonic()` instant by which the client wants its answer; None: whenever it comes."""

    request_id: str
    authorization: str | None = None
    traceparent: str | None = None
    caller: Caller = ANONYMOUS
    deadline_s: float | None = None
    forwarded: tuple[tuple[str, str], ...] = ()  # request headers that go on to upstreams, because settings say so


class Entered(NamedTuple):
    """A request that has a place, with the routes as they were then."""

    exchange: Exchange
    snapshot: Snapshot
    context: Context


class Explanation(NamedTuple):
    """A decision with what it was made from, without running the request."""

    pair: str
    profile: RequestProfile
    decision: Decision
