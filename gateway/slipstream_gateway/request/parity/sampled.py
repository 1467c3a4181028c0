"""The comparison of sampled answers of servers that do not promise equal answers for equal seeds: the scores of a pair
of answers, the tests, and the effect of an alarm.

The same server scores the speculative answer and its plain replay, each in one request that decodes a single token.
Equal token ids need no scores: the replay drew the same tokens.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from slipstream_core.errors import Incomparable
from slipstream_core.types import Capability

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.likelihood import Factors, Sampling, factors_of
from slipstream_gateway.request.parity.comparison import Answer
from slipstream_gateway.request.parity.replay import Candidate, replay, tell
from slipstream_gateway.request.parity.score import ALARM_AT, SampledTest, ScoredPair
from slipstream_gateway.upstreams.base import Job
from slipstream_gateway.upstreams.pool import Replica
from slipstream_gateway.upstreams.scores import UNSCORED

# Features that do not change the served distribution beyond temperature and filters. Answers to requests with any other
# feature are only compared with each other.
_MODELLED = frozenset(
    {
        "chat_template_kwargs",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_token_ids",
        "stream_options.continuous_usage_stats",
    }
)
MAX_RUN = 32
"""The maximum number of answers of a run that count as mismatches after an alarm."""
_log = logging.getLogger(__name__)

Distrust = Callable[[str, Capability, str], None]
"""Withdraws a capability from all servers of a pair, with the reason in one sentence."""


class SampledEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the test of one pair and class. `evidence` is in nats, the alarm is at `ALARM_AT`."""

    pair: str
    request_class: str
    answers: int
    evidence: float
    alarm: bool
    is_calibrated: bool


async def scored_pair(candidate: Candidate, speculative: Answer, replica: Replica) -> ScoredPair | None:
    """The scores of both answers; `replica` decodes the plain answer and scores both. None: the answers are equal.

    Raises the errors of upstreams, and `Incomparable` if the server returns no ids or no scores.
    """
    plain = await replay(candidate, replica)
    if not speculative.token_ids or not plain.token_ids or not speculative.prompt_token_ids:
        raise Incomparable(UNSCORED)
    if speculative.token_ids == plain.token_ids:
        return None
    request = candidate.job.request
    sampling = Sampling(request.temperature, request.top_p, max(request.top_k, 0))
    prompt, model = speculative.prompt_token_ids, candidate.served.route.plain.model

    async def factors(token_ids: tuple[int, ...]) -> Factors:
        scores = await replica.upstream.score(prompt, token_ids, model=model, headers=authorization(candidate.job))
        return factors_of(scores, sampling)

    return ScoredPair(
        speculative=await factors(speculative.token_ids),
        plain=await factors(plain.token_ids),
        is_modelled=request.features <= _MODELLED,
    )


def authorization(job: Job) -> tuple[tuple[str, str], ...]:
    """The client's headers for a request that parity sends itself."""
    return tuple((name, value) for name, value in job.headers if name == "authorization")


class _Run(NamedTuple):
    """A test, its epoch, and the candidates since its evidence was last 0 or less."""

    epoch: tuple[str, int]
    test: SampledTest
    candidates: deque[Candidate]


class SampledTests:
    """One test per pair and class. An alarm stays until the pair's manifest changes or a server of its speculative arm
    is lost, because other processes may then give the answers."""

    def __init__(self, distrust: Distrust) -> None:
        self._distrust = distrust
        self._runs: dict[tuple[str, str], _Run] = {}

    def judge(self, candidate: Candidate, pair: ScoredPair | None) -> bool:
        """Adds a comparison; None: the answers are equal. Returns whether it counts as a mismatch."""
        run = self._run(candidate)
        if pair is None:
            run.test.add_equal()
            return False
        was_alarmed = run.test.alarm
        mismatched = run.test.add(pair)
        if run.test.alarm and not was_alarmed:
            self._alarm(candidate, run)
        elif not mismatched:
            run.candidates.append(candidate)
            if run.test.evidence <= 0.0:
                run.candidates.clear()
        return mismatched

    def evidence(self) -> list[SampledEvidence]:
        """The state of each test. May be called from any thread."""
        return [
            SampledEvidence(
                pair=pair,
                request_class=request_class,
                answers=run.test.answers,
                evidence=run.test.evidence,
                alarm=run.test.alarm,
                is_calibrated=run.test.is_calibrated,
            )
            for (pair, request_class), run in list(self._runs.items())
        ]

    def _run(self, candidate: Candidate) -> _Run:
        epoch = _epoch(candidate.served)
        run = self._runs.get(candidate.key)
        if run is None or run.epoch != epoch:
            run = self._runs[candidate.key] = _Run(epoch, SampledTest(), deque(maxlen=MAX_RUN))
        return run

    def _alarm(self, candidate: Candidate, run: _Run) -> None:
        """Raises the alarm. The guards of the arm count answers, and all answers of the run were recorded as matches.
        So the run is now recorded as mismatches."""
        pair, request_class = candidate.key
        detail = (
            f"sampled answers of {request_class} are less likely under the target than plain ones: "
            f"evidence {run.test.evidence:.1f} of {ALARM_AT:.1f} after {run.test.answers} answers"
        )
        _log.warning("parity of %s: %s", pair, detail)
        for told in run.candidates:
            tell(told, matched=False)
        run.candidates.clear()
        self._distrust(pair, Capability.SAMPLED_SPECULATION, detail)


def _epoch(served: ServedRoute) -> tuple[str, int]:
    pool = served.speculative
    return served.route.generation, sum(replica.losses for replica in pool.replicas) if pool is not None else 0
