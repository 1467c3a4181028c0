"""Step 5 of the decision: whether the predicted saving pays, what it costs, and when to explore."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from slipstream_core.observation import Level
from slipstream_core.types import SHORT_MAX_TOKENS, Arm, Reason

from slipstream_gateway.decide.route.case import ArmChoice, Case, plain
from slipstream_gateway.decide.route.predicted_saving import PredictedSaving, predict_saving, saving_se_s
from slipstream_gateway.decide.route.pressure import SHRINK_FROM, shortened, stops

_NOT_TIMED = "; no answer has been timed yet"


def by_saving(case: Case) -> ArmChoice:
    """The best draft length if its saving exceeds the margin and its cost is within the limit; else plain. Without a
    forecast, speculative, because the rules did not object."""
    best = case.saving
    if best is None:
        detail = "no rule of the policy forbids speculation"
        return ArmChoice(Arm.SPECULATIVE, Reason.SPECULATION_PAYS, detail, case.longest)
    margin_s, counted_s = case.spec.margin * best.plain_s, counted_saving_s(case, best)
    if not counted_s > margin_s:
        return plain(Reason.BREAK_EVEN, _too_little(case, best, margin_s, counted_s))
    if best.saving_s > margin_s:
        reason, gain = Reason.SPECULATION_PAYS, _of_plain(case, best, best.saving_s)
        detail = f"about {best.output_tokens:.0f} tokens at {best.tokens_per_step:.1f} a step save {gain}"
    else:
        reason, gain = Reason.SPECULATION_MAY_PAY, _of_plain(case, best, counted_s)
        detail = f"the server ends drafts that do not pay, and speculation may save {gain}"
    detail += "" if case.is_timed else _NOT_TIMED
    return _too_dear(case) or ArmChoice(Arm.SPECULATIVE, reason, detail, best.draft_length)


def counted_saving_s(case: Case, best: PredictedSaving) -> float:
    """The saving that is compared with the margin: under `cautious`, its lower bound. Under `expected`, the upper bound
    for an adaptive request: its server stops verifying draft tokens that do not pay, so that a try costs little. Not
    for a short answer if a draft model has to read the prompt first, nor for an answer that one draft could hold: the
    server does not know that it ends, and verifies draft tokens in vain."""
    if case.spec.decision == "cautious":
        return best.saving_s - uncertainty_s(case)
    is_short, fits_one_draft = best.output_tokens <= SHORT_MAX_TOKENS, best.output_tokens <= case.longest + 1
    if case.is_adaptive and (not is_short or (_starts_as_soon(case) and not fits_one_draft)):
        return best.saving_s + uncertainty_s(case)
    return best.saving_s


def _starts_as_soon(case: Case) -> bool:
    """Whether no draft model reads the prompt."""
    draft = case.route.pair.spec.draft
    return draft is not None and not draft.has_model


def may_explore(case: Case) -> bool:
    """Whether the saving is possibly above the margin, given its uncertainty, at a cost within the limit; or the
    prediction rests on other keys' answers, which need not hold for this key."""
    best = case.saving
    if best is None:
        return False
    if rests_on_others(case):
        return True
    return _too_dear(case) is None and best.saving_s + uncertainty_s(case) > case.spec.margin * best.plain_s


def rests_on_others(case: Case) -> bool:
    """Whether a part of the prediction that only speculative answers show is taken over from other keys."""
    forecast = case.forecast
    if forecast is None:
        return False
    parts = (forecast.acceptance, forecast.step_base_s)
    return any(part is not None and part.level is Level.KEYS for part in parts)


def shed(case: Case, choice: ArmChoice) -> ArmChoice | None:
    """After step 5: a request that would speculate decodes plainly while nearly all places are taken, unless plain
    decoding would take more of them, or the server itself ends drafts that do not pay. A client's choice is kept, as is
    a request that only one arm can honour."""
    if not stops(case.pressure) or case.is_adaptive or relieves(case):
        return None
    taken = f"{case.pressure:.0%} of the places are taken"
    return plain(Reason.PRESSURE, f"{taken}; otherwise it would speculate with drafts of {choice.draft_length}")


def explored(case: Case) -> ArmChoice | None:
    """A share of the requests that may explore speculates to learn.

    Half of them use a random draft length, because the cost per draft token is measurable only if lengths differ.
    """
    best, draws = case.saving, case.draws
    if best is None or not may_explore(case) or draws.exploration >= case.spec.exploration_share:
        return None
    length = best.draft_length
    if draws.draft_length < 0.5:
        length = case.shortest + int(2.0 * draws.draft_length * (case.longest - case.shortest + 1))
    why = "rests on other keys' answers" if rests_on_others(case) else "is uncertain"
    detail = f"a saving of {_amount(case, best, best.saving_s)} {why}, and this request measures it"
    return ArmChoice(Arm.SPECULATIVE, Reason.EXPLORATION, detail, length)


def relieves(case: Case) -> bool:
    """Whether speculation is measured to serve requests like this one with less of the servers' time than plain
    decoding, at the present load. At a given number in flight, throughput is that number over the time of one request
    (Little's law), so shorter answers of a whole batch are capacity."""
    best, forecast = case.saving, case.forecast
    if best is None or forecast is None or not best.pays_alone:
        return False
    drafting = forecast.acceptance if forecast.acceptance is not None else forecast.step_base_s
    if Level.PRIOR in (forecast.plain_tpot_s.level, drafting.level):
        return False
    return best.saving_s > uncertainty_s(case)


def under_pressure(case: Case) -> Case:
    """`case` with the maximum draft length under its pressure."""
    if case.pressure <= SHRINK_FROM or case.is_adaptive or relieves(case):
        return case
    longest = max(case.shortest, shortened(case.longest, case.pressure))
    if case.forecast is None:
        return case._replace(longest=longest)
    return case._replace(longest=longest, saving=predict_saving(case.forecast, shortest=case.shortest, longest=longest))


def uncertainty_s(case: Case) -> float:
    """The one-sided uncertainty of the predicted saving, at the policy's confidence."""
    return _z(case.spec.confidence) * se_s(case)


def se_s(case: Case) -> float:
    """The standard error of the predicted saving. Both arms slow down together if they are the same servers, or nothing
    is known of either: servers of the same model are probably alike."""
    forecast, best, route = case.forecast, case.saving, case.route
    if forecast is None or best is None or route.speculative is None:
        return math.inf
    is_unknown = forecast.plain_tpot_s.level is forecast.step_base_s.level is Level.PRIOR
    return saving_se_s(forecast, best, same_pace=is_unknown or route.speculative.pool == route.plain.pool)


def cost_increase(case: Case) -> float | None:
    """The predicted relative increase of the cost, None where the policy has no limit or a price is missing."""
    best, route = case.saving, case.route
    if best is None or route.speculative is None or case.spec.max_cost_increase is None:
        return None
    price, plain_price = route.speculative.price_per_gpu_hour, route.plain.price_per_gpu_hour
    if price is None or not plain_price:
        return None
    return price * best.speculative_s / (plain_price * best.plain_s) - 1.0 if best.plain_s > 0 else 0.0


def _too_dear(case: Case) -> ArmChoice | None:
    """Plain if the cost of the speculative servers' time is predicted to exceed the plain ones' by more than the
    limit."""
    increase, limit = cost_increase(case), case.spec.max_cost_increase
    if increase is None or limit is None or increase <= limit:
        return None
    return plain(Reason.COST, f"the answer is predicted to cost {increase:.0%} more, the limit is {limit:.0%}")


def _too_little(case: Case, best: PredictedSaving, margin_s: float, sure_s: float) -> str:
    what = "is predicted to save" if best.saving_s >= 0 else "is predicted to lose"
    prediction = f"speculation {what} {_of_plain(case, best, abs(best.saving_s))}"
    if best.saving_s > margin_s:
        prediction += f", with certainty only {_amount(case, best, sure_s)}"
    note = "" if case.is_timed else _NOT_TIMED
    return f"{prediction}; more than {_amount(case, best, margin_s)} is required{note}"


def _amount(case: Case, best: PredictedSaving, seconds: float) -> str:
    """A saving in milliseconds, or as a share of the plain answer's time before any answer was timed."""
    return f"{1e3 * seconds:.1f} ms" if case.is_timed else f"{seconds / best.plain_s:.1%}"


def _of_plain(case: Case, best: PredictedSaving, seconds: float) -> str:
    """`seconds`, out of the plain answer's time."""
    return f"{_amount(case, best, seconds)} of {f'{1e3 * best.plain_s:.1f} ms' if case.is_timed else 'the time'}"


@lru_cache(maxsize=64)
def _z(confidence: float) -> float:
    """The distance of a one-sided bound in standard errors."""
    return NormalDist().inv_cdf(confidence)
