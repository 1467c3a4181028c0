"""Forecasts from learned estimates: the class's, with the classifier's guess."""

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
from slipstream_gateway.decide.estimate.shrinkage import Normal, joined

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
    """A query with what is known of its servers and of its API key."""

    query: ForecastQuery
    plain: PoolModel
    speculative: PoolModel
    model: KeyModel


def forecast(ask: Question) -> Forecast:
    """What to expect of a request."""
    query = ask.query
    plain_pace, fast_pace = ask.model.paces(query.subject, ask.speculative)
    counted = ask.speculative.counts_drafts
    plain_step = ask.plain.plain_step.line(query.plain_load)
    curve = ask.speculative.step if counted else ask.speculative.plain_step
    step, others = curve.line(query.speculative_load), ask.speculative.other_keys(curve)
    return Forecast(
        output_tokens=_output_tokens(ask),
        acceptance=_acceptance(ask) if counted else None,
        plain_tpot_s=_scaled(plain_step, plain_pace, ask.plain.other_keys(ask.plain.plain_step)),
        step_base_s=_scaled(step, fast_pace, others),
        step_per_draft_token_s=_per_draft_token(step, fast_pace, others) if counted else _NO_DRAFT_TOKENS,
        load=query.speculative_load,
        neighbours_step_s=_neighbours_step(ask, plain_pace) if counted else None,
        neighbours_draft_length=query.neighbours_draft_length,
        timed=ask.plain.is_timed or ask.speculative.is_timed,
        alarm=ask.model.alarm(query.subject),
    )


def _output_tokens(ask: Question) -> Estimate:
    """The mean of a log-normal length, capped."""
    query, lengths = ask.query, ask.model.lengths
    level, samples = lengths.level(query.subject.cold_class)
    found = lengths.expect(query.subject.cold_class)
    guess = math.log(max(query.profile.expected_output_tokens, 1.0))
    doubt = _doubt(priors.PROFILE_LENGTH_VARIANCE, level, samples)
    mean, variance = joined(Normal(found.mean, found.variance), Normal(guess, doubt))
    tokens = math.exp(min(mean + 0.5 * min(found.spread, _MAX_SPREAD), _MAX_LOG_TOKENS))
    if query.max_tokens is not None and tokens > query.max_tokens:
        tokens = float(query.max_tokens)
    return Estimate(mean=tokens, se=tokens * math.sqrt(variance), samples=samples, level=level)


def _acceptance(ask: Question) -> Estimate:
    query, model = ask.query, ask.model
    level, samples = model.acceptance.level(query.subject)
    doubt = _doubt(priors.ACCEPTANCE_VARIANCE, level, samples)
    guess = Normal(priors.profile_acceptance(query.profile), doubt)
    mean, variance = joined(model.acceptance.expect(query.subject), guess)
    return Estimate(mean=mean, se=math.sqrt(variance), samples=samples, level=level)


def _doubt(variance: float, level: Level, samples: float) -> float:
    """The variance of the classifier's guess, which loses weight as the class gets data, this key's or the others'."""
    return variance * (1.0 + samples / _FADING_SAMPLES) if level in (Level.CLASS, Level.KEYS) else variance


def _neighbours_step(ask: Question, pace: Ratio) -> Estimate | None:
    """A step of the current batch, if both arms have the same servers and another request speculates there."""
    length = ask.query.neighbours_draft_length
    if length <= 0.0 or ask.plain is not ask.speculative:
        return None
    curve = ask.plain.step_of(length)
    line = curve.line(ask.query.plain_load)
    step = line._replace(base=line.at(length), base_se=math.hypot(line.base_se, line.slope_se * length))
    return _scaled(step, pace, ask.plain.other_keys(curve))


def _scaled(line: Line, ratio: Ratio, others: int) -> Estimate:
    """The base of a load curve for this class. The relative errors of both add up."""
    mean = line.base * math.exp(ratio.mean)
    relative = line.base_se / line.base
    level, samples = _time_level(ratio, line.samples, others)
    return Estimate(mean=mean, se=mean * math.sqrt(relative * relative + ratio.variance), samples=samples, level=level)


def _per_draft_token(line: Line, ratio: Ratio, others: int) -> Estimate:
    scale = math.exp(ratio.mean)
    level, samples = _time_level(ratio, line.samples, others)
    return Estimate(mean=line.slope * scale, se=line.slope_se * scale, samples=samples, level=level)


_NO_DRAFT_TOKENS = Estimate(mean=0.0, se=0.0, samples=0.0, level=Level.PRIOR)


def _time_level(ratio: Ratio, samples: float, others: int) -> tuple[Level, float]:
    """The most specific level with data, and its number of answers or keys."""
    if ratio.samples > 0.0:
        return Level.CLASS, ratio.samples
    if samples > 0.0:
        return Level.PAIR, samples
    return (Level.KEYS, float(others)) if others else (Level.PRIOR, 0.0)
