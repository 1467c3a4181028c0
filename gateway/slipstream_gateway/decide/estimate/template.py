"""The estimates of one fingerprint: length, acceptance and times of its answers, updated per outcome."""

from __future__ import annotations

import math

from slipstream_core.observation import Observation
from slipstream_core.types import Arm

from slipstream_gateway.decide.estimate.acceptance import Acceptance
from slipstream_gateway.decide.estimate.classes import KeyModel
from slipstream_gateway.decide.estimate.lengths import Length
from slipstream_gateway.decide.estimate.outcomes import pace_of, trials_of
from slipstream_gateway.decide.estimate.pools import PoolModel
from slipstream_gateway.decide.estimate.ratios import ArmRatios, Ratio, RatioPrior

# From the third observation on an estimate counts as the fingerprint's own; after forgetting, three weigh slightly
# less.
SETTLED_HITS = 3
SETTLED_SAMPLES = SETTLED_HITS - 0.2

# Log ratios of times between templates: noise of one answer, between templates, and of an arm beyond its template.
_PACE_NOISE, _PACE_SHARED, _PACE_ARM = 0.2, 0.15, 0.07
# Without counts of draft tokens the speculative arm's ratio includes the acceptance.
_PACE_UNCOUNTED = 0.5


class Template:
    """The estimates of one fingerprint; those of acceptance and times are None until there are data."""

    __slots__ = ("acceptance", "hits", "length", "pace")

    def __init__(self) -> None:
        self.hits = 0
        self.length = Length()
        self.acceptance: Acceptance | None = None
        self.pace: ArmRatios | None = None

    def learn(self, seen: Observation, member: str, model: KeyModel, pool: PoolModel) -> None:
        """Records an outcome and updates the levels above; `member` is its source for the classes."""
        self._learn_length(seen, member, model)
        speculative = seen.arm is Arm.SPECULATIVE
        if speculative and seen.output_tokens > 1 and seen.draft_length > 0:
            pool.saw_drafts(seen.drafted)
        if speculative and pool.has_counted:
            self._learn_acceptance(seen, member, model)
        ttft_s = _learn_first_token(seen, pool)
        if pool.has_counted or not speculative or not pool.counts_drafts:  # else steps or tokens: undecided as yet
            self._learn_pace(seen, pool, ttft_s)

    def _learn_length(self, seen: Observation, member: str, model: KeyModel) -> None:
        x, y = math.log(seen.prompt_tokens + 1.0), math.log(seen.output_tokens)
        expected = model.lengths.expect(seen.subject, x)
        own = self.length
        if seen.cut and y < (own.expect(x) if own.samples else expected.mean):
            return  # a truncated answer would have been longer, which the expectation already covers
        model.lengths.learn(seen.subject, member, y, own, expected)
        own.update(x, y, expected)

    def _learn_acceptance(self, seen: Observation, member: str, model: KeyModel) -> None:
        trials = trials_of(seen)
        if trials is None:
            return
        own = self.acceptance
        if own is None:
            own = self.acceptance = Acceptance()
        expected = model.acceptance.expect(seen.subject)
        model.acceptance.learn(seen.subject, member, trials)
        own.update(trials.accepted, trials.decided, expected)

    def _learn_pace(self, seen: Observation, pool: PoolModel, ttft_s: float) -> None:
        speculative = seen.arm is Arm.SPECULATIVE
        pace = pace_of(seen, ttft_s, by_step=speculative and pool.counts_drafts)
        if pace is None:
            return
        draft_length = seen.batch_draft_length if pool.counts_drafts else 0.0
        curve = pool.step_of(draft_length)
        expected_s = curve.line(seen.load).at(draft_length)
        confirmed_s = curve.confirmed(seen.load, seen.subject.key, pace.step_s, expected_s)
        if curve.is_usual(pace.step_s, confirmed_s):
            curve.update(seen.load, draft_length, pace.step_s, expected_s, confirmed_s, pace.weight)
        if self.pace is None:
            self.pace = ArmRatios()
        self.pace.update(speculative, math.log(pace.step_s / expected_s), pace.weight, pace_prior(pool))


def _learn_first_token(seen: Observation, pool: PoolModel) -> float:
    """The time to first token: observed or, for an answer that was not streamed, expected."""
    thousands, speculative = seen.prompt_tokens / 1000.0, seen.arm is Arm.SPECULATIVE
    if seen.ttft_s is None:
        return pool.first_token.line(seen.load, speculative=speculative).at(thousands)
    pool.first_token.learn(seen.load, thousands, seen.ttft_s, speculative=speculative)
    return seen.ttft_s


def pace_prior(pool: PoolModel) -> RatioPrior:
    """The expected ratio of a new template's step times to the curves."""
    return RatioPrior(_PACE_NOISE, _PACE_SHARED, _PACE_ARM if pool.counts_drafts else _PACE_UNCOUNTED)


def unseen(prior: RatioPrior) -> tuple[Ratio, Ratio]:
    """The ratios of a template without observations, plain and speculative."""
    variance = prior.shared**2 + prior.arm**2
    return Ratio(0.0, variance, 0.0), Ratio(0.0, variance, 0.0)
