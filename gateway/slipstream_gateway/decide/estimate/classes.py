"""The estimates of one API key's requests to a pair, by class, and its times by pool of servers.

Between keys, only medians are shared.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from slipstream_core.observation import Observation, Subject
from slipstream_core.types import Arm

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.class_offsets import ClassOffsets, Variances, Votes
from slipstream_gateway.decide.estimate.outcomes import pace_of, trials_of
from slipstream_gateway.decide.estimate.pools import PoolModel, SharedPool
from slipstream_gateway.decide.estimate.running import Normal, RunningMean, joined
from slipstream_gateway.decide.estimate.slowdown import SlowdownAlarm

_LENGTHS = Variances(kinds=0.3**2, keys=0.5**2, classes=0.8**2, pairs=0.6**2)
_ACCEPTANCE = Variances(kinds=0.08**2, keys=0.12**2, classes=priors.ACCEPTANCE_VARIANCE, pairs=0.1**2)
# A request's draft tokens are not independent trials, because requests differ: n of them count as n / (1 + n·ρ), with ρ
# the share of the variance that lies between requests, so that one long answer does not imply certainty.
_BETWEEN_REQUESTS = 0.02
_ACCEPTANCE_NOISE = 0.2 * _BETWEEN_REQUESTS
# Of the squares of log lengths around their mean: the samples of the prior, the window, and the largest deviation.
_SPREAD_SAMPLES, _SPREAD_KEEP, _MAX_DEVIATION = 5.0, 0.99, 1.5
# Of the log of a class's time per token on servers that do not count draft tokens, so that it includes the acceptance:
# one answer's noise, and its variance between classes.
_PACE_NOISE, _PACE_VARIANCE = 0.2**2, 0.5**2
# Of one key at one pair: of the arms, with those that a manifest has replaced.
_MAX_POOLS = 4


class PairModel:
    """The data that the API keys of one model pair share: their votes by class."""

    def __init__(self) -> None:
        self.lengths: Votes = {}
        self.acceptance: Votes = {}


class KeyModel:
    """The estimates of one API key's requests to one model pair."""

    def __init__(self, key: str, pair: PairModel) -> None:
        self.lengths = ClassOffsets(key, pair.lengths, _LENGTHS)
        self.acceptance = ClassOffsets(key, pair.acceptance, _ACCEPTANCE)
        self._key = key
        self._spreads: dict[str, RunningMean] = {}
        self._paces: dict[str, RunningMean] = {}
        self._alarms: dict[str, SlowdownAlarm] = {}
        self._pools: OrderedDict[str, PoolModel] = OrderedDict()

    def pool(self, name: str, shared: SharedPool) -> PoolModel:
        """The key's times on a pool of servers; `shared` is what the keys of that pool share."""
        found = self._pools.get(name)
        if found is None:
            found = self._pools[name] = PoolModel(self._key, shared)
            if len(self._pools) > _MAX_POOLS:
                self._pools.popitem(last=False)
        else:
            self._pools.move_to_end(name)
        return found

    def spread(self, cold_class: str) -> float:
        """The variance of a single answer's log length."""
        found = self._spreads.get(cold_class)
        return priors.LENGTH_SPREAD if found is None else max(found.mean, priors.LEAST_LENGTH_SPREAD)

    def pace(self, cold_class: str) -> Normal:
        """The log of the class's time per speculative token relative to its servers', which count no draft tokens."""
        found = self._paces.get(cold_class)
        prior = Normal(0.0, _PACE_VARIANCE)
        return prior if found is None else joined(Normal(found.mean, _PACE_NOISE / found.weight), prior)

    def alarm(self, subject: Subject) -> bool | None:
        """Whether the class has an alarm; None before its first answers were compared."""
        found = self._alarms.get(subject.cold_class)
        return None if found is None else found.is_on

    def learn(self, seen: Observation, pool: PoolModel) -> None:
        """Records an outcome, here and in the times of its servers."""
        self._alarms.setdefault(seen.subject.cold_class, SlowdownAlarm()).learn(seen)
        self._learn_length(seen)
        self._learn_times(seen, pool)

    def _learn_length(self, seen: Observation) -> None:
        name = seen.subject.cold_class
        offset, expected = math.log(seen.output_tokens) - priors.class_length(name), self.lengths.expect(name).mean
        if seen.cut and offset < expected:
            return  # a truncated answer would have been longer, which the expectation already covers
        if name not in self._spreads:
            self._spreads[name] = RunningMean(priors.LENGTH_SPREAD, _SPREAD_SAMPLES, keep=_SPREAD_KEEP)
        self._spreads[name].add(min(abs(offset - expected), _MAX_DEVIATION) ** 2)
        self.lengths.learn(name, offset, self.spread(name))

    def _learn_times(self, seen: Observation, pool: PoolModel) -> None:
        speculative = seen.arm is Arm.SPECULATIVE
        if speculative and seen.output_tokens > 1 and seen.draft_length > 0:
            pool.saw_drafts(seen.drafted)
        if speculative and pool.has_counted and (trials := trials_of(seen)) is not None:
            weight = trials.decided * _BETWEEN_REQUESTS / (1.0 + trials.decided * _BETWEEN_REQUESTS)
            offset = trials.accepted / trials.decided - priors.class_acceptance(seen.subject.cold_class)
            self.acceptance.learn(acceptance_name(seen.subject), offset, _ACCEPTANCE_NOISE, weight)
        if seen.ttft_s is not None:
            pool.first_token_s.add(seen.ttft_s)
        if pool.has_counted or not speculative or not pool.counts_drafts:  # else steps or tokens: undecided as yet
            self._learn_pace(seen, pool)

    def _learn_pace(self, seen: Observation, pool: PoolModel) -> None:
        counted, speculative = pool.counts_drafts, seen.arm is Arm.SPECULATIVE
        first_s = pool.first_token_s.mean if pool.first_token_s.weight else None
        pace = pace_of(seen, first_s, by_step=speculative and counted)
        if pace is None:
            return
        draft_length = seen.batch_draft_length if counted else 0.0
        curve = pool.step_of(draft_length)
        expected_s, is_first = curve.line(seen.load).at(draft_length), not curve.changes
        curve.update(seen.load, draft_length, pace.step_s, expected_s, pace.weight)
        if speculative and not counted and not is_first:  # the first defines the curve
            log_ratio = math.log(pace.step_s / expected_s)
            found = self._paces.setdefault(seen.subject.cold_class, RunningMean())
            found.add(min(max(log_ratio, -_MAX_DEVIATION), _MAX_DEVIATION), pace.weight)


def acceptance_name(subject: Subject) -> str:
    """The class and kind of temperature of an acceptance."""
    return f"{subject.cold_class}/{subject.temperature}"
