"""Observations of finished requests, and their distribution to the evidence, the estimates and the other gateways."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

import msgspec
from slipstream_core.manifest.table import Backend
from slipstream_core.observation import PARITY, Content, Observation, ParityResult, Subject
from slipstream_core.redis.condition import StoreStatus
from slipstream_core.types import Decision

from slipstream_gateway.upstreams.base import Usage
from slipstream_gateway.upstreams.pool import Batch

LEARNT_PER_S = 100.0
LEARNT_AT_ONCE = 500.0
LEARNT_PER_KEY_S = 10
WAITING = 500
_log = logging.getLogger(__name__)
_BISECTIONS = 20


class Observer(Protocol):
    """Learns the costs of requests, or compares the arms on live traffic. `record` is quick and never raises on an
    observation."""

    def record(self, observation: Observation) -> None: ...


class OutcomeStore(Protocol):
    """Shares observations between gateways."""

    def append(self, observation: Observation) -> None:
        """Queues an observation of this gateway. Never waits, never raises."""
        ...

    async def run(self, apply: Callable[[Observation], None]) -> None:
        """Calls `apply` with the observations of other gateways, until cancelled."""
        ...

    async def aclose(self) -> None: ...


class Outcomes:
    """Passes each observation to the evidence and to the estimates, and those of this gateway also to the store.

    Estimates cover the last tens of requests of a kind, so at a high rate a part of the requests suffices. At most
    `LEARNT_PER_S` are learnt per second on average, which bounds the time that learning takes from serving. The first
    `LEARNT_PER_KEY_S` of an API key in a second may borrow up to a second's allowance, so that one key's flood does not
    keep the others from learning. Observations of other gateways are learnt with the remaining allowance. Only the
    newest `WAITING` of them are kept, because a process reads a long history when it starts; of too many, the oldest of
    the key with the most is dropped.
    """

    def __init__(
        self,
        *,
        learner: Observer,
        evidence: Observer,
        store: OutcomeStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learner = learner
        self._evidence = evidence
        self._store = store
        self._clock = clock
        self._allowance = LEARNT_AT_ONCE
        self._refilled_s = clock()
        self._learnt: Counter[str] = Counter()  # by key, since `_second_s`
        self._second_s = clock()
        self._waiting: dict[str, deque[Observation]] = {}  # by key, which take turns
        self._waits = 0
        self._failed = False

    def record(self, observation: Observation) -> None:
        """Records a request that ended on this gateway. Estimates and evidence are of the serving revision alone."""
        if not observation.canary:
            self._try(self._evidence.record, observation)
            if self._may_learn(observation.subject.key):
                self._try(self._learner.record, observation)
        self._learn_waiting()
        self._store.append(observation)

    def apply(self, observation: Observation) -> None:
        """Records a request that ended on another gateway."""
        if observation.canary:
            return
        self._try(self._evidence.record, observation)
        self._waiting.setdefault(observation.subject.key, deque()).append(observation)
        self._waits += 1
        if self._waits > WAITING:
            self._next_waiting(max(self._waiting, key=lambda key: len(self._waiting[key])))
        self._learn_waiting()

    def _learn_waiting(self) -> None:
        while self._waiting and self._may_learn():
            self._try(self._learner.record, self._next_waiting(next(iter(self._waiting))))

    def _next_waiting(self, key: str) -> Observation:
        """Takes the oldest observation of `key`, which then waits behind the other keys."""
        line = self._waiting.pop(key)
        found = line.popleft()
        self._waits -= 1
        if line:
            self._waiting[key] = line
        return found

    def _may_learn(self, key: str | None = None) -> bool:
        """Takes an allowance; only the `key` of a request that ended here may borrow."""
        now_s = self._clock()
        self._allowance = min(self._allowance + (now_s - self._refilled_s) * LEARNT_PER_S, LEARNT_AT_ONCE)
        self._refilled_s = now_s
        if now_s - self._second_s >= 1.0:
            self._second_s = now_s
            self._learnt.clear()
        may_borrow = key is not None and self._learnt[key] < LEARNT_PER_KEY_S
        if self._allowance + (LEARNT_PER_S if may_borrow else 0.0) < 1.0:
            return False
        self._allowance -= 1.0
        if key is not None:
            self._learnt[key] += 1
        return True

    def _try(self, record: Callable[[Observation], None], observation: Observation) -> None:
        try:
            record(observation)
        except Exception:  # an unforeseen outcome, perhaps of another gateway, must not fail a request
            if not self._failed:
                self._failed = True
                _log.exception("an outcome could not be learnt from; others like it are not logged")


class Times(msgspec.Struct, frozen=True, gc=False):
    """The times of a request as measured for its client, in seconds. `ttft_s` and `tpot_s` are None if undefined."""

    e2e_s: float
    ttft_s: float | None
    tpot_s: float | None


_ALONE = Batch(1.0, 0.0)


class PendingObservation(msgspec.Struct, frozen=True, eq=False):
    """The observation of a request that is decided and still runs.

    `prompt_tokens` is the classifier's estimate, as in forecasts: servers count with their own tokenizers, and
    estimates that are learnt with one count and queried with another are wrong by the ratio of the counts. `one_pool`:
    both arms have the same servers. `revision` and `canary` are those of the observation. `is_measured`: the answer's
    content is compared with that of the other revision. `began_s` is the time of the decision, by `time.perf_counter`.
    """

    subject: Subject
    prompt_tokens: int
    outcomes: Outcomes
    one_pool: bool
    revision: str = ""
    canary: bool = False
    is_measured: bool = False
    began_s: float = msgspec.field(default_factory=time.perf_counter)

    def record(
        self,
        *,
        decision: Decision,
        backend: Backend,
        status: str,
        usage: Usage,
        times: Times,
        batch: Batch,
        cut: bool,
        parity: str | None = None,
        content: Content | None = None,
    ) -> None:
        """Records the end of the request, or of an attempt that failed."""
        observation = Observation(
            subject=self.subject,
            request_class=decision.request_class,
            arm=decision.arm,
            reason=decision.reason,
            draft_length=decision.draft_length,
            pool=backend.pool,
            status=status,
            prompt_tokens=self.prompt_tokens,
            output_tokens=usage.output_tokens,
            drafted=usage.drafted,
            accepted=usage.accepted,
            rejections=rejections(usage, decision.draft_length),
            steps=steps(usage, decision.draft_length),
            ttft_s=times.ttft_s,
            e2e_s=times.e2e_s,
            load=batch.load,
            batch_draft_length=batch.draft_length,
            price_per_gpu_hour=backend.price_per_gpu_hour,
            time_s=time.time(),
            cut=cut,
            parity=parity,
            priced_s=usage.engine_s if self.one_pool else times.e2e_s,
            revision=self.revision,
            canary=self.canary,
            alarmed=decision.alarmed,
            content=content,
        )
        self.outcomes.record(observation)

    def record_parity(self, result: ParityResult, *, decision: Decision, backend: Backend) -> None:
        """Records the comparison of the answer from `backend` under `decision` with its plain replay.

        `e2e_s` counts from the decision: a replay may run minutes later, and its result belongs to the time of the
        answer.
        """
        self.record(
            decision=decision,
            backend=backend,
            status=PARITY,
            usage=Usage(),
            times=Times(time.perf_counter() - self.began_s, None, None),
            batch=_ALONE,
            cut=False,
            parity=result.value,
        )


def steps(usage: Usage, draft_length: int) -> int:
    """The number of the target's steps. Servers that count draft tokens but no steps draft `draft_length` tokens per
    step."""
    if usage.steps or not usage.drafted or not draft_length:
        return usage.steps
    return -(-usage.drafted // draft_length)


def rejections(usage: Usage, draft_length: int) -> int:
    """The number of steps that rejected a draft token.

    If the server does not report it, the expected number: with β the probability that a draft token is accepted if all
    before it were, a step of draft length γ accepts β + β² + … + β^γ tokens on average, and rejects one with
    probability 1 - β^γ.
    """
    most = usage.drafted - usage.accepted
    if usage.rejected_at or most <= 0:
        return sum(usage.rejected_at)
    count = steps(usage, draft_length)
    if not count or not draft_length:
        return most
    beta = _acceptance(usage.accepted / count, draft_length)
    return max(1, min(round(count * (1.0 - beta**draft_length)), count, most))


def _acceptance(accepted_per_step: float, draft_length: int) -> float:
    """The β that yields `accepted_per_step` accepted tokens per step, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        beta = (low + high) / 2
        if beta * (1.0 - beta**draft_length) / (1.0 - beta) < accepted_per_step:
            low = beta
        else:
            high = beta
    return low


class MemoryStore:
    """An `OutcomeStore` without other gateways: it sends and delivers nothing."""

    def append(self, observation: Observation) -> None:
        """Does nothing: this gateway's estimates already include its own outcomes."""

    async def run(self, apply: Callable[[Observation], None]) -> None:
        """Waits until it is cancelled; `apply` is never called."""
        await asyncio.get_running_loop().create_future()

    async def aclose(self) -> None:
        """Holds no resources."""

    def status(self) -> StoreStatus:
        """Always connected, with all counters at 0."""
        return StoreStatus()
