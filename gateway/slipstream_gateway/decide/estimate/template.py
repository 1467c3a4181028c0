"""The estimates of one fingerprint: length, acceptance and times of its answers, updated per outcome."""

from __future__ import annotations

import math

from slipstream_core.observation import Observation, Subject
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
_CONTEXT_BUCKETS = 8

# Log ratios of times between templates: noise of one answer, between templates, and of an arm beyond its template.
_PACE_NOISE, _PACE_SHARED, _PACE_ARM = 0.2, 0.15, 0.07
# Without counts of draft tokens the speculative arm's ratio includes the acceptance.
_PACE_UNCOUNTED = 0.5
# An arm's own share of the time to first token is estimated per pool: one template has too few data.
_FIRST_TOKEN = RatioPrior(plain=0.0, speculative=0.0, noise=0.4, shared=0.3, arm=0.01)


class Template:
    """The estimates of one fingerprint; those of acceptance and times are None until there are data."""

    __slots__ = ("acceptance", "first_token", "hits", "length", "pace")

    def __init__(self) -> None:
        self.hits = 0
        self.length = Length()
        self.acceptance: Acceptance | None = None
        self.pace: ArmRatios | None = None
        self.first_token: ArmRatios | None = None

    def learn(self, seen: Observation, member: str, model: KeyModel, pool: PoolModel) -> None:
        """Records an outcome and updates the levels above; `member` is its source for the classes."""
        self._learn_length(seen, member, model)
        speculative = seen.arm is Arm.SPECULATIVE
        if speculative and seen.output_tokens > 1 and seen.draft_length > 0:
            pool.saw_drafts(seen.drafted)
        if speculative and pool.has_counted:
            self._learn_acceptance(seen, member, model)
        ttft_s = self._learn_first_token(seen, pool)
        if pool.has_counted or not speculative or not pool.counts_drafts:  # else steps or tokens: undecided as yet
            self._learn_pace(seen, member, model, pool, ttft_s)

    def _learn_length(self, seen: Observation, member: str, model: KeyModel) -> None:
        x, y = math.log(seen.prompt_tokens + 1.0), math.log(seen.output_tokens)
        expected = model.lengths.expect(seen.subject, x)
        own = self.length
        if seen.cut and y < (own.expect(x) if own.samples else expected.mean):
            return  # a truncated answer would have been longer, which the expectation already covers
        model.lengths.learn(seen.subject, member, y, own, expected, teach=model.may_teach(own.samples))
        own.update(x, y, expected)

    def _learn_acceptance(self, seen: Observation, member: str, model: KeyModel) -> None:
        trials = trials_of(seen)
        if trials is None:
            return
        own = self.acceptance
        if own is None:
            own = self.acceptance = Acceptance()
        bucket = bucket_of(seen.subject.temperature, seen.subject.context)
        expected = model.acceptance.expect(seen.subject, bucket)
        teach = model.may_teach(own.samples)
        model.acceptance.learn(seen.subject, bucket, member, trials, own.samples, expected, teach=teach)
        own.update(bucket, trials.accepted, trials.decided, expected)

    def _learn_first_token(self, seen: Observation, pool: PoolModel) -> float:
        """The time to first token: observed or, for an answer that was not streamed, expected."""
        speculative = seen.arm is Arm.SPECULATIVE
        thousands = seen.prompt_tokens / 1000.0
        step_s = pool.plain_step.line(seen.load).base
        expected_s = pool.first_token.expect(seen.load, thousands, step_s, speculative=speculative).mean
        if seen.ttft_s is None:
            return expected_s
        pool.first_token.learn(seen.load, thousands, step_s, seen.ttft_s, speculative=speculative)
        if self.first_token is None:
            self.first_token = ArmRatios()
        self.first_token.update(speculative, math.log(seen.ttft_s / expected_s), 1.0, _FIRST_TOKEN)
        return seen.ttft_s

    def _learn_pace(self, seen: Observation, member: str, model: KeyModel, pool: PoolModel, ttft_s: float) -> None:
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
        log_ratio = math.log(pace.step_s / expected_s)
        prior = pace_prior(seen.subject, model, pool)
        model.learn_pace(seen.subject, member, log_ratio, pace.weight, speculative=speculative)
        if self.pace is None:
            self.pace = ArmRatios()
        self.pace.update(speculative, log_ratio, pace.weight, prior)


def bucket_of(temperature: int, context: int) -> int:
    """One number for a subject's coarse temperature and context."""
    return temperature * _CONTEXT_BUCKETS + context


def pace_prior(subject: Subject, model: KeyModel, pool: PoolModel) -> RatioPrior:
    """The expected ratio of a new template's step times to the curves, by its class."""
    plain, speculative = model.pace(subject.cold_class)
    arm = _PACE_ARM if pool.counts_drafts else _PACE_UNCOUNTED
    return RatioPrior(plain, speculative, _PACE_NOISE, _PACE_SHARED, arm)


def unseen(prior: RatioPrior) -> tuple[Ratio, Ratio]:
    """The ratios of a template without observations, plain and speculative."""
    variance = prior.shared**2 + prior.arm**2
    return Ratio(prior.plain, variance, 0.0), Ratio(prior.speculative, variance, 0.0)


FIRST_TOKEN_UNSEEN = unseen(_FIRST_TOKEN)
