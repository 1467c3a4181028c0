"""One server: its requests in flight, whether it responds, and the health of each arm that it serves."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping

import msgspec
from slipstream_core.errors import SlipstreamError
from slipstream_core.settings import HealthSettings
from slipstream_core.types import Capability, Withheld

from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.pool.breaker import Breaker, Ejection

_FRESH_S = 0.5
_REFUSED_S = 5.0
_SAME_WITHIN_S = 2.0


class Liveness:
    """`is_silent`: the last probe got no response."""

    def __init__(self, upstream: Upstream) -> None:
        self.is_silent = False
        self._upstream = upstream
        self._probe_task: asyncio.Task[bool] | None = None
        self._probed_s = 0.0

    async def probe(self, within_s: float) -> bool:
        """Whether the server responds to a probe `within_s`. Concurrent callers share one probe."""
        now_s = time.monotonic()
        if self._probe_task is None or (self._probe_task.done() and now_s - self._probed_s > _FRESH_S):
            self._probed_s = now_s
            self._probe_task = asyncio.create_task(self._run_probe(within_s))
        return await asyncio.shield(self._probe_task)

    async def _run_probe(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._upstream.probe()
        except (SlipstreamError, TimeoutError):
            self.is_silent = True
        else:
            self.is_silent = False
        return not self.is_silent


class Occupancy(msgspec.Struct, frozen=True, gc=False):
    """Work of a replica up to a moment: requests in flight and their draft lengths, each integrated over time."""

    time_s: float
    request_s: float
    draft_length_s: float


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The batch that a request was part of: mean requests in flight, mean draft length, both including the request
    itself."""

    load: float
    draft_length: float

    @classmethod
    def between(cls, start: Occupancy, end: Occupancy, *, draft_length: int) -> Batch:
        """The batch during a request with `draft_length`."""
        elapsed_s, request_s = end.time_s - start.time_s, end.request_s - start.request_s
        if elapsed_s <= 0.0 or request_s <= 0.0:
            return cls(1.0, float(draft_length))
        return cls(max(request_s / elapsed_s, 1.0), (end.draft_length_s - start.draft_length_s) / request_s)


_DEFAULTS = HealthSettings()
_SERVER_GONE = "upstream_unavailable"
_REQUEST_BROKE = "upstream_failed"


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one replica of one arm, for metrics and the console. `index` is its place in the pool, `circuit`
    closed, open or half_open, `cause` the reason why it is not closed. `outstanding` is the server's, over all arms."""

    index: int
    name: str
    outstanding: int
    circuit: str
    cause: str | None
    retry_after_s: float
    ejections: dict[str, int]
    drag: float
    ttft_s: float | None


class Replica:
    """One server of a pool with its load and its health.

    Health is per arm: if both arms decode on one server, only drafting may fail. A request's draft length shows its
    arm: it is 0 exactly when the request does not speculate.

    `withheld` are the capabilities that a check of the engine removed. `unverified` are those of a server without a
    completed check; they apply again after the server was unreachable, because another process may respond next.
    `models` are the names of the models that the server listed last, its LoRA adapters among them; None: unknown.
    `losses` counts how often the server was unreachable. `gives_token_ids`: a check found that the server returns the
    token ids of its answers, and that the plain side scores them.
    """

    def __init__(self, name: str, upstream: Upstream, health: HealthSettings = _DEFAULTS) -> None:
        self.name = name
        self.upstream = upstream
        self.outstanding = 0
        self.stops = 0
        self.unconditional_draft_lengths = 0
        self.models: frozenset[str] | None = None
        self._refused: dict[str, float] = {}
        self.losses = 0
        self.gives_token_ids = False
        self.unverified: Mapping[Capability, Withheld] = {}
        self.withheld: Mapping[Capability, Withheld] = {}
        self._breakers = (Breaker(health), Breaker(health))
        self._liveness = Liveness(upstream)
        self._breaks: list[tuple[bool, str]] = []
        self._judging: asyncio.Task[None] | None = None
        self._draft_lengths = 0
        self._changed_s = 0.0
        self._request_s = 0.0
        self._draft_length_s = 0.0

    def why_withheld(self, capability: Capability | None) -> Withheld | None:
        """The reason why the server may not use `capability` now, by its own description and by checks. None: it
        may."""
        if capability is None:
            return None
        return self.upstream.drafting.withheld or self.withheld.get(capability)

    def lacks(self, adapter: str | None) -> bool:
        """Whether the server is known not to have loaded `adapter`, by its name there."""
        if adapter is None:
            return False
        return (self.models is not None and adapter not in self.models) or self.refuses(adapter)

    def refuses(self, adapter: str) -> bool:
        """Whether the server refused a request for `adapter` within the last `_REFUSED_S`."""
        return self._refused.get(adapter, -math.inf) > time.monotonic() - _REFUSED_S

    def refused(self, adapter: str) -> None:
        """Records that the server does not have `adapter`, whatever it listed."""
        self._refused[adapter] = time.monotonic()

    def withheld_now(self) -> dict[Capability, Withheld]:
        """Every capability that the server may not use now, with the reason."""
        found = {capability: self.why_withheld(capability) for capability in Capability}
        return {capability: why for capability, why in found.items() if why is not None}

    def breaker(self, *, speculative: bool) -> Breaker:
        """The health of an arm."""
        return self._breakers[speculative]

    @property
    def ejected(self) -> bool:
        """Whether the plain arm is ejected."""
        return self._breakers[False].is_open

    @property
    def is_silent(self) -> bool:
        """Whether the last liveness probe got no response."""
        return self._liveness.is_silent

    async def lives(self, within_s: float) -> bool:
        """Probes the server. Without a response both arms are ejected at once, because no request that runs there can
        be relied on."""
        if await self._liveness.probe(within_s):
            return True
        for breaker in self._breakers:
            breaker.eject(time.monotonic(), Ejection.UNREACHABLE)
        return False

    def acquire(self, draft_length: int, now_s: float, *, unconditional: bool = False) -> Occupancy:
        """Counts the start of a request of `draft_length`. `unconditional`: the request would speculate whatever its
        neighbours do."""
        occupancy = self._occupancy(now_s)
        self.outstanding += 1
        self.unconditional_draft_lengths += draft_length if unconditional else 0
        self._draft_lengths += draft_length
        breaker = self._breakers[draft_length > 0]
        if breaker.is_open:
            breaker.probing = True
        return occupancy

    def release(self, draft_length: int, now_s: float, *, unconditional: bool = False) -> Occupancy:
        """Counts the end of a request, with the arguments of its start; `Batch.between` returns the batch that it
        shared."""
        occupancy = self._occupancy(now_s)
        self.outstanding -= 1
        self.unconditional_draft_lengths -= draft_length if unconditional else 0
        self._draft_lengths -= draft_length
        self._breakers[draft_length > 0].probing = False
        return occupancy

    async def stop_drafting(self) -> None:
        """As the upstream's; `stops` counts the calls, so that affected answers can be recognised."""
        self.stops += 1
        await self.upstream.stop_drafting()

    def succeeded(self, now_s: float, *, speculative: bool = False, ttft_s: float | None = None) -> None:
        """The first piece of an answer arrived, `ttft_s` after the attempt began; None for an answer in one piece."""
        self._breakers[speculative].answered(now_s, ttft_s)

    def completed(self, now_s: float, *, speculative: bool = False, key: str = "") -> None:
        """An answer to a request of an API key ended regularly."""
        self._breakers[speculative].completed(now_s, key)

    def failed(
        self,
        now_s: float,
        cause: str = _SERVER_GONE,
        *,
        speculative: bool = False,
        key: str = "",
        broke: bool = False,
    ) -> None:
        """An attempt failed through the server's fault. If the server is unreachable, both arms fail; any other failure
        counts for the request's arm. `cause`: `upstream_unavailable`, `upstream_timeout`, `upstream_failed`, `stalled`,
        or `overloaded`. `key`: the API key of the request. `broke`: the connection broke after the request had been
        sent, by the end of the process or by the request alone. The failure counts once the server was queried."""
        if broke and cause == _SERVER_GONE:
            self._breaks.append((speculative, key))
            if self._judging is None or self._judging.done():
                self._judging = asyncio.create_task(self._judge_breaks())
            return
        self._breakers[speculative].failed(now_s, cause, key)
        if cause == _SERVER_GONE:
            self._breakers[not speculative].failed(now_s, cause, key)
            self.lost()

    async def _judge_breaks(self) -> None:
        """Queries the server once for all breaks since the last query began."""
        while self._breaks:
            breaks, self._breaks = self._breaks, []
            cause = _REQUEST_BROKE if await self._is_same() else _SERVER_GONE
            for speculative, key in breaks:
                self.failed(time.monotonic(), cause, speculative=speculative, key=key)

    async def _is_same(self) -> bool:
        try:
            async with asyncio.timeout(_SAME_WITHIN_S):
                return await self.upstream.is_same()
        except (SlipstreamError, TimeoutError):
            return False

    def lost(self) -> None:
        """The server was unreachable: results of engine checks may not hold for the process that responds next."""
        self.losses += 1
        self.models = None
        self._refused.clear()
        self.gives_token_ids = False
        self.withheld = self.unverified

    def state(self, index: int, now_s: float, *, speculative: bool) -> ReplicaState:
        """The state of an arm, for metrics and the console."""
        breaker = self._breakers[speculative]
        return ReplicaState(
            index=index,
            name=self.name,
            outstanding=self.outstanding,
            circuit=breaker.circuit(now_s),
            cause=breaker.cause,
            retry_after_s=breaker.retry_after_s(now_s),
            ejections={str(cause): count for cause, count in breaker.ejections.items()},
            drag=breaker.drag,
            ttft_s=breaker.first_token_s(now_s),
        )

    def _occupancy(self, now_s: float) -> Occupancy:
        if self.outstanding:
            elapsed_s = now_s - self._changed_s
            self._request_s += elapsed_s * self.outstanding
            self._draft_length_s += elapsed_s * self._draft_lengths
        self._changed_s = now_s
        return Occupancy(now_s, self._request_s, self._draft_length_s)
