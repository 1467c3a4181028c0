"""Forecasts from learned estimates: the class's, with the classifier's guess."""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_core.observation import Estimate, Forecast, Level, Subject
from slipstream_core.types import RequestProfile

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.class_offsets import Expected
from slipstream_gateway.decide.estimate.classes import KeyModel, acceptance_name
from slipstream_gateway.decide.estimate.curves import Line
from slipstream_gateway.decide.estimate.pools import PoolModel
from slipstream_gateway.decide.estimate.running import Normal, joined

# Of a log length: the maximum addition of its variance to the mean length, and the limit of its value.
_MAX_SPREAD = 1.0
_MAX_LOG_TOKENS = 16.0
# This many observations of a class halve the weight of the classifier's guess.
_FADING_SAMPLES = 2.0
_NO_DRAFT_TOKENS = Estimate(mean=0.0, se=0.0, samples=0.0, level=Level.PRIOR)


class ForecastQuery(NamedTuple):
    """A request and the servers that might take it. Loads are requests in flight per replica, this one included;
    `speculative_pool` None: as on the plain one. `neighbours_draft_length`: see `Forecast`."""

    subject: Subject
    profile: RequestProfile
    plain_pool: str
    speculative_pool: str | None
    plain_load: float
    speculative_load: float
    max_tokens: int | None
    neighbours_draft_length: float = 0.0


def forecast(query: ForecastQuery, plain: PoolModel, speculative: PoolModel, model: KeyModel) -> Forecast:
    """What to expect of a request, by what is known of its servers and of its API key."""
    counted = speculative.counts_drafts
    curve = speculative.step if counted else speculative.plain_step
    step, others = curve.line(query.speculative_load), len(curve.others)
    if not counted:
        pace = model.pace(query.subject.cold_class)
        step = step.scaled(math.exp(pace.mean), pace.variance)
    plain_step = plain.plain_step.line(query.plain_load)
    return Forecast(
        output_tokens=_output_tokens(query, model),
        acceptance=_acceptance(query, model) if counted else None,
        plain_tpot_s=_base(plain_step, len(plain.plain_step.others)),
        step_base_s=_base(step, others),
        step_per_draft_token_s=_time(step.slope, step.slope_se, step, others) if counted else _NO_DRAFT_TOKENS,
        load=query.speculative_load,
        neighbours_step_s=_neighbours_step(query, plain) if counted and plain is speculative else None,
        neighbours_draft_length=query.neighbours_draft_length,
        timed=plain.is_timed or speculative.is_timed,
        alarm=model.alarm(query.subject),
    )


def _output_tokens(query: ForecastQuery, model: KeyModel) -> Estimate:
    """The mean of a log-normal length, capped."""
    name = query.subject.cold_class
    found, spread = model.lengths.expect(name), model.spread(name)
    guess = math.log(max(query.profile.expected_output_tokens, 1.0)) - priors.class_length(name)
    mean, variance = _with_guess(found, guess, priors.PROFILE_LENGTH_VARIANCE)
    log_tokens = priors.class_length(name) + mean + 0.5 * min(spread, _MAX_SPREAD)
    tokens = math.exp(min(log_tokens, _MAX_LOG_TOKENS))
    if query.max_tokens is not None and tokens > query.max_tokens:
        tokens = float(query.max_tokens)
    return Estimate(mean=tokens, se=tokens * math.sqrt(variance), samples=found.samples, level=found.level)


def _acceptance(query: ForecastQuery, model: KeyModel) -> Estimate:
    prior = priors.class_acceptance(query.subject.cold_class)
    found = model.acceptance.expect(acceptance_name(query.subject))
    guess = priors.profile_acceptance(query.profile) - prior
    mean, variance = _with_guess(found, guess, priors.ACCEPTANCE_VARIANCE)
    beta = min(max(prior + mean, priors.LEAST_ACCEPTANCE), 1.0 - priors.LEAST_ACCEPTANCE)
    return Estimate(mean=beta, se=math.sqrt(variance), samples=found.samples, level=found.level)


def _with_guess(found: Expected, guess: float, variance: float) -> Normal:
    """`found` and the classifier's guess, which loses weight as the class gets data, this key's or the others'."""
    doubt = variance * (1.0 + (found.samples / _FADING_SAMPLES if found.level in (Level.CLASS, Level.KEYS) else 0.0))
    return joined(Normal(found.mean, found.variance), Normal(guess, doubt))


def _neighbours_step(query: ForecastQuery, pool: PoolModel) -> Estimate | None:
    """A step of the current batch on the servers of both arms, if another request speculates there."""
    length = query.neighbours_draft_length
    if length <= 0.0:
        return None
    curve = pool.step_of(length)
    line = curve.line(query.plain_load)
    se = math.hypot(line.base_se, line.slope_se * length)
    return _time(line.at(length), se, line, len(curve.others))


def _base(line: Line, others: int) -> Estimate:
    return _time(line.base, line.base_se, line, others)


def _time(mean: float, se: float, line: Line, others: int) -> Estimate:
    """A part of `line`, at the most specific level with data, and its number of answers or keys."""
    level, samples = (Level.PAIR, line.samples) if line.samples > 0.0 else (Level.PRIOR, 0.0)
    if others and level is Level.PRIOR:
        level, samples = Level.KEYS, float(others)
    return Estimate(mean=mean, se=se, samples=samples, level=level)
