"""The estimates of one API key's requests to a pair, by class.

Lengths and acceptance have a hierarchy, pair -> class: each level is an offset from the one above, with a variance that
remains for the one below. Each API key has its own levels and times; between keys, only medians are shared.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from slipstream_core.observation import Observation, Subject
from slipstream_core.types import Arm

from slipstream_gateway.decide.estimate.class_acceptance import ClassAcceptance, SharedAcceptance
from slipstream_gateway.decide.estimate.class_lengths import ClassLengths, SharedLengths
from slipstream_gateway.decide.estimate.outcomes import pace_of, trials_of
from slipstream_gateway.decide.estimate.pools import PoolModel, SharedPool
from slipstream_gateway.decide.estimate.ratios import ArmRatios, Ratio, RatioPrior, unseen
from slipstream_gateway.decide.estimate.slowdown import SlowdownAlarm

# Log ratios of times between classes: noise of one answer, between classes, and of an arm beyond its class.
_PACE_NOISE, _PACE_SHARED, _PACE_ARM = 0.2, 0.15, 0.07
# Without counts of draft tokens the speculative arm's ratio includes the acceptance.
_PACE_UNCOUNTED = 0.5
# Of one key at one pair: of the arms, with those that a manifest has replaced.
_MAX_POOLS = 4


class PairModel:
    """The data that the API keys of one model pair share."""

    def __init__(self) -> None:
        self.lengths = SharedLengths()
        self.acceptance = SharedAcceptance()


class KeyModel:
    """The estimates of one API key's requests to one model pair."""

    def __init__(self, key: str, pair: PairModel) -> None:
        self.lengths = ClassLengths(key, pair.lengths)
        self.acceptance = ClassAcceptance(key, pair.acceptance)
        self._key = key
        self._paces: dict[str, ArmRatios] = {}
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

    def paces(self, subject: Subject, pool: PoolModel) -> tuple[Ratio, Ratio]:
        """The class's times relative to those of its servers, plain and speculative."""
        found = self._paces.get(subject.cold_class)
        return unseen(_pace_prior(pool)) if found is None else (found.plain, found.speculative)

    def alarm(self, subject: Subject) -> bool | None:
        """Whether the class has an alarm; None before its first answers were compared."""
        found = self._alarms.get(subject.cold_class)
        return None if found is None else found.is_on

    def learn(self, seen: Observation, pool: PoolModel) -> None:
        """Records an outcome, here and in the times of its servers."""
        self._alarms.setdefault(seen.subject.cold_class, SlowdownAlarm()).learn(seen)
        self._learn_length(seen)
        self._learn_times(seen, pool)
        pool.learnt()

    def _learn_times(self, seen: Observation, pool: PoolModel) -> None:
        speculative = seen.arm is Arm.SPECULATIVE
        if speculative and seen.output_tokens > 1 and seen.draft_length > 0:
            pool.saw_drafts(seen.drafted)
        if speculative and pool.has_counted and (trials := trials_of(seen)) is not None:
            self.acceptance.learn(seen.subject, trials)
        if seen.ttft_s is not None:
            pool.first_token_s.add(seen.ttft_s, 1.0)
        if pool.has_counted or not speculative or not pool.counts_drafts:  # else steps or tokens: undecided as yet
            self._learn_pace(seen, pool)

    def _learn_length(self, seen: Observation) -> None:
        cold_class, y = seen.subject.cold_class, math.log(seen.output_tokens)
        expected = self.lengths.expect(cold_class)
        if seen.cut and y < expected.mean:
            return  # a truncated answer would have been longer, which the expectation already covers
        self.lengths.learn(cold_class, y, expected)

    def _learn_pace(self, seen: Observation, pool: PoolModel) -> None:
        speculative = seen.arm is Arm.SPECULATIVE
        draft_length = seen.batch_draft_length if pool.counts_drafts else 0.0
        curve = pool.step_of(draft_length)
        expected_s = curve.line(seen.load).at(draft_length)
        first_s = pool.first_token_s.mean if pool.first_token_s.weight else None
        is_first = not curve.has_data
        pace = pace_of(seen, first_s, by_step=speculative and pool.counts_drafts)
        if pace is None:
            return
        curve.update(seen.load, draft_length, pace.step_s, expected_s, pace.weight)
        if is_first:  # it defines the curve, so that its ratio is 1
            return
        ratios = self._paces.setdefault(seen.subject.cold_class, ArmRatios())
        ratios.update(speculative, math.log(pace.step_s / expected_s), pace.weight, _pace_prior(pool))


def _pace_prior(pool: PoolModel) -> RatioPrior:
    """The expected ratio of a class's step times to the curves."""
    return RatioPrior(_PACE_NOISE, _PACE_SHARED, _PACE_ARM if pool.counts_drafts else _PACE_UNCOUNTED)
