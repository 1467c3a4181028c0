"""The replicas that serve one arm of one pair: selection by least outstanding requests, and a sweep once a second."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from slipstream_core.settings import HealthSettings
from slipstream_core.types import Capability, GenerationRequest, Withheld

from slipstream_gateway.upstreams.pool.affinity import Affinity, head_key
from slipstream_gateway.upstreams.pool.breaker import Breaker, Ejection
from slipstream_gateway.upstreams.pool.replica import Replica, ReplicaState

_DEFAULTS = HealthSettings()
_SWEEP_S = 1.0


class Pool:
    """`speculative` names the arm. All replicas of a speculative arm may be ejected, because the plain arm takes over.
    Of a plain arm, the sweep ejects at most a share, and the last replica is always used. `caches_prefixes`: the
    servers keep the beginnings of prompts, so that requests with the same beginning are best sent to the same one."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        clock: Callable[[], float],
        speculative: bool = False,
        health: HealthSettings = _DEFAULTS,
        caches_prefixes: bool = False,
    ) -> None:
        self.replicas = tuple(replicas)
        self._members = tuple((replica, replica.breaker(speculative=speculative)) for replica in replicas)
        self._speculative = speculative
        self._health = health
        self._clock = clock
        self._affinity = Affinity([replica.name for replica in replicas])
        self._is_affine = caches_prefixes and len(self.replicas) > 1
        self._turn = 0
        self._sweep_s = clock() + _SWEEP_S

    def key_for(self, request: GenerationRequest) -> int | None:
        """What requests with the same beginning have in common; None if it does not matter to the replicas."""
        return head_key(request) if self._is_affine else None

    def pick(
        self,
        tried: Sequence[Replica] = (),
        needs: Capability | None = None,
        *,
        key: int | None = None,
        adapter: str | None = None,
        is_needed: bool = True,
    ) -> Replica | None:
        """The usable replica with the least work that is not in `tried` and has the capability that the request
        `needs`; ties rotate. With a `key`, the replica that requests with this key prefer, unless it has far more work
        than the others. Replicas that are known to lack the LoRA `adapter`, by its name on the servers, are left out.
        None: no replica is left.

        If all replicas of a plain arm are ejected, and none of them was tried, the one whose ejection ends first;
        `is_needed` False: none, because other servers can take the request.
        """
        now_s = self._clock()
        if now_s >= self._sweep_s:
            self._sweep(now_s)
        tried = [*tried, *self.lacking(adapter)] if adapter is not None else tried
        best = self._least_work(tried, needs, now_s) if key is None else self._preferred(key, tried, needs, now_s)
        if best is not None or self._speculative or not is_needed:
            return best
        return None if any(replica in tried for replica in self.replicas) else self.last_resort()

    def _least_work(self, tried: Sequence[Replica], needs: Capability | None, now_s: float) -> Replica | None:
        best: Replica | None = None
        least = math.inf
        count = len(self._members)
        self._turn += 1
        for offset in range(count):
            replica, breaker = self._members[(self._turn + offset) % count]
            if replica in tried or (breaker.is_open and not breaker.usable(now_s)) or replica.why_withheld(needs):
                continue
            cost = (replica.outstanding + 1) * breaker.drag
            if cost < least:
                best, least = replica, cost
        return best

    def _preferred(self, key: int, tried: Sequence[Replica], needs: Capability | None, now_s: float) -> Replica | None:
        costs = [
            math.inf
            if replica in tried or (breaker.is_open and not breaker.usable(now_s)) or replica.why_withheld(needs)
            else (replica.outstanding + 1) * breaker.drag
            for replica, breaker in self._members
        ]
        index = self._affinity.preferred(key, costs, [replica.outstanding for replica in self.replicas])
        return None if index is None else self.replicas[index]

    def likely(
        self, needs: Capability | None = None, key: int | None = None, adapter: str | None = None
    ) -> Replica | None:
        """The replica that `pick` would choose now with these arguments, or one with as few requests. None: there is
        none."""
        if key is not None:
            return self._preferred(key, self.lacking(adapter), needs, self._clock())
        return self.least_busy(needs, adapter)

    def least_busy(self, needs: Capability | None = None, adapter: str | None = None) -> Replica | None:
        """The replica with the fewest requests in flight that could take the request now. None: there is none."""
        now_s = self._clock()
        least: Replica | None = None
        lacking = self.lacking(adapter)
        for replica, breaker in self._members:
            if not breaker.usable(now_s) or replica.why_withheld(needs) or replica in lacking:
                continue
            if least is None or replica.outstanding < least.outstanding:
                least = replica
        return least

    def lacking(self, adapter: str | None) -> Sequence[Replica]:
        """The replicas that do not have the LoRA adapter. If none lists it, those that refused a request for it, since
        vLLM can load adapters at their first request."""
        if adapter is None:
            return ()
        found = [replica for replica in self.replicas if replica.lacks(adapter)]
        return found if len(found) < len(self.replicas) else [each for each in found if each.refuses(adapter)]

    def withheld(self, capability: Capability) -> Withheld | None:
        """The reason why the servers that are up may not use `capability`. None: they may, or none of them is up."""
        now_s = self._clock()
        up = [replica for replica, breaker in self._members if breaker.usable(now_s)]
        found = [why for replica in up if (why := replica.why_withheld(capability)) is not None]
        return found[0] if found and len(found) == len(up) else None

    def longest_draft(self, capability: Capability) -> int | None:
        """The maximum draft length that every server with `capability` accepts. None: no maximum."""
        lengths = [
            longest
            for replica in self.replicas
            if (longest := replica.upstream.drafting.longest) is not None and not replica.why_withheld(capability)
        ]
        return min(lengths, default=None)

    def is_adaptive(self, capability: Capability) -> bool:
        """Whether every server with `capability` can choose the draft length of a request in each step, without an
        effect on its tokens."""
        able = [replica.upstream.drafting for replica in self.replicas if not replica.why_withheld(capability)]
        is_free = [
            drafting.adaptive and (drafting.seed_equality or capability is not Capability.SAMPLED_SPECULATION)
            for drafting in able
        ]
        return bool(able) and all(is_free)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all replicas; empty if they differ, or one is unknown."""
        found = {replica.upstream.fingerprint for replica in self.replicas}
        return found.pop() if len(found) == 1 else ""

    def last_resort(self) -> Replica | None:
        """The replica whose ejection ends first, if all are ejected. None: the pool has no replicas."""
        now_s = self._clock()
        found = min(self._members, key=lambda member: member[1].retry_after_s(now_s), default=None)
        return found[0] if found is not None else None

    def by_return(self) -> list[Replica]:
        """All replicas, ordered by the time of their next permitted attempt."""
        now_s = self._clock()
        return [replica for replica, _ in sorted(self._members, key=lambda member: member[1].retry_after_s(now_s))]

    def retry_after_s(self) -> float:
        """The time until the first replica may be used again."""
        now_s = self._clock()
        return min((breaker.retry_after_s(now_s) for _, breaker in self._members), default=1.0)

    def states(self) -> tuple[ReplicaState, ...]:
        """The state of the replicas, for metrics and the console."""
        now_s = self._clock()
        return tuple(
            replica.state(index, now_s, speculative=self._speculative) for index, replica in enumerate(self.replicas)
        )

    def _sweep(self, now_s: float) -> None:
        """Ejects replicas that fail too often, then those that are far slower than the rest, within the pool's limit of
        ejections."""
        self._sweep_s = now_s + _SWEEP_S
        for _, breaker in self._members:
            if breaker.fails_too_often(now_s) and self._can_spare_one():
                breaker.eject(now_s, Ejection.ERROR_RATE)
        slowest = self._out_of_line(now_s)
        if slowest is not None and self._can_spare_one():
            slowest.eject(now_s, Ejection.LATENCY)

    def _can_spare_one(self) -> bool:
        if self._speculative:
            return True
        out = sum(breaker.is_open for _, breaker in self._members)
        return out + 1 <= self._health.max_ejected_share * len(self._members)

    def _out_of_line(self, now_s: float) -> Breaker | None:
        """The slowest replica, if its median time to the first token is a multiple of the median of the others'
        medians. That is robust against single requests and, with three or more replicas, against another slow one."""
        found = [(ttft_s, at) for at, (_, breaker) in enumerate(self._members) if (ttft_s := _ttft_s(breaker, now_s))]
        if len(found) < 2:
            return None
        found.sort()
        *others, (slowest_s, at) = found
        usual_s = median(ttft_s for ttft_s, _ in others)
        limit_s = max(usual_s * self._health.slow_factor, usual_s + self._health.slow_by_s)
        return self._members[at][1] if slowest_s > limit_s else None


def _ttft_s(breaker: Breaker, now_s: float) -> float | None:
    return None if breaker.is_open else breaker.first_token_s(now_s)
