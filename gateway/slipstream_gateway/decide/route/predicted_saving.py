"""The predicted saving of speculation on one request, for every permitted draft length.

With L output tokens, of which the first comes with the prompt, and E(β, γ) tokens per step (Leviathan et al. 2023)::

    plain       = L · TPOT_plain                                   step(γ) = base + γ · per_draft_token
    speculative = TPOT_plain + steps · step(γ)                     steps   = (L - 1) / E(β, γ), but at least 1
    saving      = plain - speculative

The first token counts as one plain step in both: its time hardly depends on the arm.

A step that yields more tokens than the answer still needs takes as long as any other: an answer of two tokens gains
nothing by speculation.

Pure arithmetic on a forecast. The standard error of the saving follows from those of its parts by the delta method. The
parts count as independent, except for the pace of servers that both arms share.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_core.observation import Estimate, Forecast
from slipstream_core.types import ADAPTIVE_STEP_DRAFT_TOKENS

# A longer answer and slower servers scale the saving or loss without changing its sign. So the sum of their relative
# errors is capped here, and ignorance of the scale does not hide the sign.
_MOST_SCALE = 0.4


class PredictedSaving(NamedTuple):
    """The best draft length and its predicted effect. Times are seconds; `tokens_per_step` is E, `output_tokens` L,
    `step_draft_tokens` the number of draft tokens that a step is counted to verify.
    `pays_alone`: it also pays without speculating neighbours."""

    draft_length: int
    step_draft_tokens: int
    output_tokens: float
    tokens_per_step: float
    tokens_per_step_slope: float
    plain_tpot_s: float
    speculative_tpot_s: float
    plain_s: float
    speculative_s: float
    pays_alone: bool = True

    @property
    def saving_s(self) -> float:
        return self.plain_s - self.speculative_s


def predict_saving(forecast: Forecast, *, shortest: int, longest: int, adaptive: bool = False) -> PredictedSaving:
    """The draft length in `shortest..longest` with the largest predicted saving; of equal ones the shorter. `adaptive`:
    a draft length is a maximum, and a step verifies fewer draft tokens, none where they do not pay. Speculation is then
    predicted not to lose.

    There are two scenarios, and the one with the larger saving counts. Alone: a batch of requests like this one, all
    plain or all speculative. Joined: the present batch, whose other requests speculate because it pays for them alone;
    its steps already take longer, and this request adds its own draft tokens to them.
    """
    plain_s, base_s = forecast.plain_tpot_s.mean, forecast.step_base_s.mean
    lengths = _Lengths(shortest, longest, ADAPTIVE_STEP_DRAFT_TOKENS if adaptive else longest, adaptive)
    alone = _best(forecast, plain_s, base_s, lengths)
    neighbours = forecast.neighbours_step_s
    if neighbours is None:
        return alone
    overhead_s = max(base_s - plain_s, 0.0) * max(1.0 - forecast.neighbours_draft_length, 0.0)
    joined = _best(forecast, neighbours.mean, neighbours.mean + overhead_s, lengths)
    return alone if alone.saving_s >= joined.saving_s else joined._replace(pays_alone=alone.saving_s > 0.0)


class _Lengths(NamedTuple):
    """The permitted draft lengths, the maximum number of draft tokens that a step verifies, and whether it may verify
    none."""

    shortest: int
    longest: int
    verified: int
    may_be_none: bool


def _best(forecast: Forecast, plain_tpot_s: float, base_s: float, lengths: _Lengths) -> PredictedSaving:
    acceptance = forecast.acceptance
    beta = acceptance.mean if acceptance is not None else 0.0
    per_draft_token_s = forecast.step_per_draft_token_s.mean
    power, tokens, slope = 1.0, 1.0, 0.0  # β^γ, E and dE/dβ, updated with γ
    after_first = max(forecast.output_tokens.mean - 1.0, 0.0)
    best = (math.inf, math.inf, lengths.shortest, 1.0, 0.0)
    for length in range(1, lengths.longest + 1):
        slope += length * power
        power *= beta
        tokens += power
        tpot_s = (base_s + min(length, lengths.verified) * per_draft_token_s) / tokens
        after_first_s = _steps(after_first, tokens) * tokens * tpot_s if after_first else 0.0
        if length >= lengths.shortest and after_first_s < best[0]:
            best = (after_first_s, tpot_s, length, tokens, slope)
    after_first_s, tpot_s, draft_length, tokens, slope = best
    if lengths.may_be_none:
        tpot_s = min(tpot_s, plain_tpot_s)
        after_first_s = min(after_first_s, after_first * plain_tpot_s)
    return PredictedSaving(
        draft_length,
        min(draft_length, lengths.verified),
        forecast.output_tokens.mean,
        tokens,
        slope if acceptance is not None else 0.0,
        plain_tpot_s,
        tpot_s,
        plain_tpot_s + after_first * plain_tpot_s,
        plain_tpot_s + after_first_s,
    )


def _steps(after_first: float, tokens_per_step: float) -> float:
    """The mean number of steps that yield `after_first` tokens."""
    return max(after_first / tokens_per_step, min(after_first, 1.0))


def saving_se_s(forecast: Forecast, best: PredictedSaving, *, same_pace: bool) -> float:
    """The standard error of `best.saving_s`: that of each part times the saving's derivative by it.

    With `same_pace`, plain and speculative steps are slower or faster together: the smaller of their relative errors is
    common to both, and a common error nearly cancels.
    """
    after_first = max(best.output_tokens - 1.0, 0.0)
    steps = _steps(after_first, best.tokens_per_step)
    plain_pace, pace = _relative(forecast.plain_tpot_s), _relative(forecast.step_base_s)
    common = min(plain_pace, pace) if same_pace else 0.0
    acceptance = forecast.acceptance
    return math.hypot(
        after_first
        * (best.plain_tpot_s - best.speculative_tpot_s)
        * min(math.hypot(_relative(forecast.output_tokens), common), _MOST_SCALE),
        after_first * best.plain_tpot_s * _without(plain_pace, common),
        steps * forecast.step_base_s.mean * _without(pace, common),
        steps * best.step_draft_tokens * forecast.step_per_draft_token_s.se,
        steps * best.speculative_tpot_s * best.tokens_per_step_slope * acceptance.se if acceptance is not None else 0.0,
    )


def _relative(estimate: Estimate) -> float:
    return estimate.se / estimate.mean if estimate.mean > 0.0 else 0.0


def _without(error: float, common: float) -> float:
    """The rest of an error after removal of `common`, a part of it."""
    return math.sqrt(error * error - common * common) if common < error < math.inf else error - common
