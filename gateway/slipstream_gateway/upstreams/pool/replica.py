"""One server: what it has in flight, and the health of each arm that it serves."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from slipstream_core.settings import HealthSettings
from slipstream_core.types import Capability, Withheld

from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.pool.breaker import Breaker, Ejection
from slipstream_gateway.upstreams.pool.occupancy import Occupancy
from slipstream_gateway.upstreams.pool.pulse import Pulse

_DEFAULTS = HealthSettings()
_SERVER_GONE = "upstream_unavailable"


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of one arm for somebody who looks. `index` is its place in the pool, `circuit` closed, open or
    half_open, `cause` why it is not closed. `outstanding` is the server's, whatever arm sent it."""

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

    Health is kept per arm: where both decode on one server, drafting may be what fails. The arm of a request shows in
    its draft length, which is 0 exactly when it does not speculate.

    `withheld` are the capabilities that a check of the engine took away; `unverified` are those of a server that
    nobody has checked yet, which it falls back to when it could not be reached: another process may answer next.
    `losses` counts how often it could not be reached. `gives_token_ids`: a check saw that it gives those of its
    answers, and that the plain side scores them.
    """

    def __init__(self, name: str, upstream: Upstream, health: HealthSettings = _DEFAULTS) -> None:
        self.name = name
        self.upstream = upstream
        self.outstanding = 0
        self.stops = 0
        self.unconditional_draft_lengths = 0
        self.losses = 0
        self.gives_token_ids = False
        self.unverified: Mapping[Capability, Withheld] = {}
        self.withheld: Mapping[Capability, Withheld] = {}
        self._breakers = (Breaker(health), Breaker(health))
        self._pulse = Pulse(upstream)
        self._draft_lengths = 0
        self._changed_s = 0.0
        self._request_s = 0.0
        self._draft_length_s = 0.0

    def why_withheld(self, capability: Capability | None) -> Withheld | None:
        """Why the server may not use `capability` now, by what it says of itself and by checks. None: it may."""
        if capability is None:
            return None
        return self.upstream.drafting.withheld or self.withheld.get(capability)

    def withheld_now(self) -> dict[Capability, Withheld]:
        """Every capability that it may not use now, and why."""
        found = {capability: self.why_withheld(capability) for capability in Capability}
        return {capability: why for capability, why in found.items() if why is not None}

    def breaker(self, *, speculative: bool) -> Breaker:
        """The health of an arm."""
        return self._breakers[speculative]

    @property
    def ejected(self) -> bool:
        """Whether the plain arm is out."""
        return self._breakers[False].is_open

    @property
    def is_silent(self) -> bool:
        """Whether it gave no sign of life when it was last asked for one."""
        return self._pulse.is_silent

    async def lives(self, within_s: float) -> bool:
        """Asks for a sign of life. Without one nothing that runs there can be counted on: both arms are out at once."""
        if await self._pulse.beats(within_s):
            return True
        for breaker in self._breakers:
            breaker.eject(time.monotonic(), Ejection.UNREACHABLE)
        return False

    def acquire(self, draft_length: int, now_s: float, *, unconditional: bool = False) -> Occupancy:
        """A request of `draft_length` starts here; `unconditional`: it would speculate whatever its neighbours do."""
        occupancy = self._occupancy(now_s)
        self.outstanding += 1
        self.unconditional_draft_lengths += draft_length if unconditional else 0
        self._draft_lengths += draft_length
        breaker = self._breakers[draft_length > 0]
        if breaker.is_open:
            breaker.probing = True
        return occupancy

    def release(self, draft_length: int, now_s: float, *, unconditional: bool = False) -> Occupancy:
        """It is over; `Batch.between` tells what it shared the replica with. Arguments as at its start."""
        occupancy = self._occupancy(now_s)
        self.outstanding -= 1
        self.unconditional_draft_lengths -= draft_length if unconditional else 0
        self._draft_lengths -= draft_length
        self._breakers[draft_length > 0].probing = False
        return occupancy

    async def stop_drafting(self) -> None:
        """As the upstream does; `stops` counts how often, so that answers can be told that were changed by it."""
        self.stops += 1
        await self.upstream.stop_drafting()

    def succeeded(self, now_s: float, *, speculative: bool = False, ttft_s: float | None = None) -> None:
        """The first piece of an answer is here, `ttft_s` after the attempt began; None for one that is whole."""
        self._breakers[speculative].answered(now_s, ttft_s)

    def completed(self, now_s: float, *, speculative: bool = False) -> None:
        """An answer came to its regular end."""
        self._breakers[speculative].completed(now_s)

    def failed(self, now_s: float, cause: str = _SERVER_GONE, *, speculative: bool = False) -> None:
        """An attempt failed by the server's fault. One that cannot be reached is gone for both arms; what else goes
        wrong is the arm's own. `cause`: `upstream_unavailable`, `upstream_timeout`, `upstream_failed`, `stalled`, or
        `overloaded`."""
        self._breakers[speculative].failed(now_s, cause)
        if cause == _SERVER_GONE:
            self._breakers[not speculative].failed(now_s, cause)
            self.lost()

    def lost(self) -> None:
        """It could not be reached: what was found out about its engine may not hold for who answers next."""
        self.losses += 1
        self.gives_token_ids = False
        self.withheld = self.unverified

    def state(self, index: int, now_s: float, *, speculative: bool) -> ReplicaState:
        """What there is to say of an arm."""
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
