"""Forecasts from learned estimates: the template's own, else its class's with the classifier's guess."""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_core.observation import Estimate, Forecast, Level, Subject
from slipstream_core.types import RequestProfile

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.classes import KeyModel
from slipstream_gateway.decide.estimate.curves import Line
from slipstream_gateway.decide.estimate.pools import PoolModel
from slipstream_gateway.decide.estimate.ratios import Ratio
from slipstream_gateway.decide.estimate.template import (
    SETTLED_HITS,
    SETTLED_SAMPLES,
    Template,
    pace_prior,
    unseen,
)

# Of a log length: the maximum addition of its variance to the mean length, and the limit of its value.
_MAX_SPREAD = 1.0
_MAX_LOG_TOKENS = 16.0
# This many observations of a class halve the weight of the classifier's guess.
_FADING_SAMPLES = 2.0


class ForecastQuery(NamedTuple):
    """A request and the servers that might take it. Loads are requests in flight per replica, this one included;
    `speculative_pool` None: as on the plain one. `neighbours_draft_length`: see `Forecast`."""

    subject: Subject
    profile: RequestProfile
    plain_pool: str
    speculative_pool: str | None
    plain_load: float
    speculative_load: float
    prompt_tokens: int
    max_tokens: int | None
    neighbours_draft_length: float = 0.0


class Question(NamedTuple):
    """A query with what is known of its servers and of its API key. `template` None: the fingerprint is new."""

    query: ForecastQuery
    plain: PoolModel
    speculative: PoolModel
    template: Template | None
    model: KeyModel


def forecast(ask: Question) -> Forecast:
    """What to expect of a request."""
    query = ask.query
    output, spread = _output_tokens(ask)
    plain_pace, fast_pace = _paces(ask)
    thousands = query.prompt_tokens / 1000.0
    counted = ask.speculative.counts_drafts
    plain_step = ask.plain.plain_step.line(query.plain_load)
    step = (ask.speculative.step if counted else ask.speculative.plain_step).line(query.speculative_load)
    return Forecast(
        output_tokens=output,
        output_tokens_spread=spread,
        acceptance=_acceptance(ask) if counted else None,
        plain_tpot_s=_scaled(plain_step.base, plain_step.base_se, plain_step.samples, plain_pace),
        step_base_s=_scaled(step.base, step.base_se, step.samples, fast_pace),
        step_per_draft_token_s=_per_draft_token(step, fast_pace) if counted else _NO_DRAFT_TOKENS,
        plain_ttft_s=_first_token(ask.plain.first_token.line(query.plain_load, speculative=False), thousands),
        speculative_ttft_s=_first_token(
            ask.speculative.first_token.line(query.speculative_load, speculative=True), thousands
        ),
        load=query.speculative_load,
        neighbours_step_s=_neighbours_step(ask, plain_pace) if counted else None,
        neighbours_draft_length=query.neighbours_draft_length,
    )


def _output_tokens(ask: Question) -> tuple[Estimate, float]:
    """The mean of a log-normal length, capped, and the standard deviation of its log."""
    query, template, model = ask.query, ask.template, ask.model
    x = math.log(query.prompt_tokens + 1.0)
    # A template whose answers were all cut short has no length yet: such an answer says only that it would be longer.
    if template is not None and template.length.samples:
        own = template.length
        mean, variance, spread, samples = own.expect(x), own.variance_at(x), own.spread, own.samples
        level = Level.FINGERPRINT if template.hits >= SETTLED_HITS else Level.CLASS
    else:
        level, samples = model.lengths.level(query.subject.cold_class)
        prior = model.lengths.expect(query.subject, x)
        guess = math.log(max(query.profile.expected_output_tokens, 1.0))
        doubt = _doubt(priors.PROFILE_LENGTH_VARIANCE, level, samples)
        mean, variance = _blend(prior.mean, prior.variance, guess, doubt)
        spread = prior.spread
    tokens = math.exp(min(mean + 0.5 * min(spread, _MAX_SPREAD), _MAX_LOG_TOKENS))
    if query.max_tokens is not None and tokens > query.max_tokens:
        tokens = float(query.max_tokens)
    return Estimate(mean=tokens, se=tokens * math.sqrt(variance), samples=samples, level=level), math.sqrt(spread)


def _acceptance(ask: Question) -> Estimate:
    query, template, model = ask.query, ask.template, ask.model
    own = template.acceptance if template is not None else None
    if own is not None:
        beta = own.posterior
        level = Level.FINGERPRINT if own.samples >= SETTLED_SAMPLES else Level.CLASS
        return Estimate(mean=beta.mean, se=math.sqrt(beta.variance), samples=own.samples, level=level)
    level, samples = model.acceptance.level(query.subject)
    prior = model.acceptance.expect(query.subject)
    doubt = _doubt(priors.ACCEPTANCE_VARIANCE, level, samples)
    mean, variance = _blend(prior.mean, prior.variance, priors.profile_acceptance(query.profile), doubt)
    return Estimate(mean=mean, se=math.sqrt(variance), samples=samples, level=level)


def _paces(ask: Question) -> tuple[Ratio, Ratio]:
    template = ask.template
    pace = template.pace if template is not None else None
    if pace is not None:
        return pace.plain, pace.speculative
    return unseen(pace_prior(ask.speculative))


def _doubt(variance: float, level: Level, samples: float) -> float:
    """The variance of the classifier's guess, which loses weight as the class gets data."""
    return variance * (1.0 + samples / _FADING_SAMPLES) if level is Level.CLASS else variance


def _blend(first: float, first_variance: float, second: float, second_variance: float) -> tuple[float, float]:
    """The mean of two independent guesses, weighted by precision, and its variance."""
    total = first_variance + second_variance
    return (first * second_variance + second * first_variance) / total, first_variance * second_variance / total


def _neighbours_step(ask: Question, pace: Ratio) -> Estimate | None:
    """A step in the batch as it is, where both arms are the same servers and somebody speculates there."""
    length = ask.query.neighbours_draft_length
    if length <= 0.0 or ask.plain is not ask.speculative:
        return None
    line = ask.plain.step_of(length).line(ask.query.plain_load)
    return _scaled(line.at(length), math.hypot(line.base_se, line.slope_se * length), line.samples, pace)


def _scaled(seconds: float, se: float, samples: float, ratio: Ratio) -> Estimate:
    """A time of the load curve for this template. The relative errors of both add up."""
    mean = seconds * math.exp(ratio.mean)
    relative = se / seconds
    return Estimate(
        mean=mean,
        se=mean * math.sqrt(relative * relative + ratio.variance),
        samples=ratio.samples or samples,
        level=_time_level(ratio, samples),
    )


def _per_draft_token(line: Line, ratio: Ratio) -> Estimate:
    scale = math.exp(ratio.mean)
    level = _time_level(ratio, line.samples)
    return Estimate(mean=line.slope * scale, se=line.slope_se * scale, samples=line.samples, level=level)


_NO_DRAFT_TOKENS = Estimate(mean=0.0, se=0.0, samples=0.0, level=Level.PRIOR)


def _first_token(line: Line, thousands: float) -> Estimate:
    level = Level.PAIR if line.samples > 0.0 else Level.PRIOR
    se = math.hypot(line.base_se, line.slope_se * thousands)
    return Estimate(mean=line.at(thousands), se=se, samples=line.samples, level=level)


def _time_level(ratio: Ratio, samples: float) -> Level:
    if ratio.samples >= SETTLED_SAMPLES:
        return Level.FINGERPRINT
    return Level.PAIR if samples > 0.0 else Level.PRIOR
