"""The oracle: the best draft length of each request, by its recorded answer and the cost of a step.

Requests of a batch share its steps, so that the best assignment cannot be found request by request. Prices of a step,
a row and a pass of the draft, taken from a simulated run, make it separable; each assignment is simulated, which gives
new prices. The best assignment that was found counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.benchmarks.oracle.costs import Costs
from tests.benchmarks.oracle.policies import ENGINES_CHOICE, Given
from tests.benchmarks.oracle.recordings import Recorded
from tests.benchmarks.oracle.simulation import LONGEST_DRAFT, Choice, Done, Engine, Policy, Totals

LENGTHS = range(LONGEST_DRAFT + 1)
_ROUNDS = 3
_PLAIN = Choice(0)
Run = tuple[list[Done], Totals]
Total = Callable[[Sequence[Done]], float]


class Case(NamedTuple):
    """Requests on a simulated server. `total` of the answers is to be small."""

    costs: Costs
    requests: Sequence[Recorded]
    in_flight: Sequence[int]
    total: Total

    def run(self, policy: Policy) -> Run:
        return Engine(self.costs, policy, self.in_flight).run(self.requests)


def uniform(case: Case) -> list[Run]:
    """The runs in which all requests have one length, by the length."""
    return [case.run(Given.lengths([length] * len(case.requests))) for length in LENGTHS]


def best_lengths(case: Case, fixed: Sequence[Run]) -> list[Done]:
    """The answers of the best lengths found. `fixed` are the runs of `uniform`."""
    best = min((answers for answers, _ in fixed), key=case.total)
    steps = {id(one): [one.steps(length) for length in LENGTHS] for one in case.requests}
    for start in (*sorted(fixed, key=lambda run: case.total(run[0]))[:2], fixed[-1]):
        found = start
        for _ in range(_ROUNDS):
            prices = _prices(case.costs, found[1])
            lengths = [_cheapest(case.costs, one, steps[id(one)], prices) for one in case.requests]
            found = case.run(Given.lengths(lengths))
            best = min(best, found[0], key=case.total)
    return best


def best_arms(case: Case, chosen: Run) -> list[Done]:
    """The answers of the best distribution found between plain decoding and the engine's choice, of which `chosen` is
    the run of all requests."""
    best, (answers, totals) = chosen[0], chosen
    prices = _prices(case.costs, totals)
    row_ms, step_ms = prices[1].row_ms, prices[0].each_ms - prices[0].row_ms
    choices = []
    for one, done in zip(case.requests, answers, strict=True):
        speculative_ms = done.steps * step_ms + (done.steps + done.drafted) * row_ms + done.drafted * prices[1].pass_ms
        speculative_ms += case.costs.draft_prefill * one.prompt_tokens
        plain_ms = len(one.matched) * prices[0].each_ms
        choices.append(_PLAIN if plain_ms <= speculative_ms else ENGINES_CHOICE)
    return min(best, case.run(Given(choices))[0], key=case.total)


class _Price(NamedTuple):
    """What a request with a draft length pays for each of its steps, of that for a row, and for a pass of the draft."""

    each_ms: float
    row_ms: float
    pass_ms: float


def _prices(costs: Costs, totals: Totals) -> list[_Price]:
    count = max(totals.steps, 1)
    together, rows, context = totals.requests / count, totals.rows / count, round(totals.context / count)
    step_ms = costs.step_ms(round(rows), round(together), context)
    row_ms = costs.step_ms(round(rows) + 1, round(together), context) - step_ms
    shared_ms = (step_ms - row_ms * rows) / together
    drafting = _drafting_prices(costs, totals, together)
    one_pass_ms = costs.drafting_ms(1, round(together)) / together
    return [_Price(shared_ms + row_ms * (1 + length) + drafting[length], row_ms, one_pass_ms) for length in LENGTHS]


def _cheapest(costs: Costs, one: Recorded, steps: Sequence[int], prices: Sequence[_Price]) -> int:
    """The length of a request that costs the least."""

    def cost_ms(length: int) -> float:
        prefill_ms = costs.draft_prefill * one.prompt_tokens if length else 0.0
        return steps[length] * prices[length].each_ms + prefill_ms

    return min(LENGTHS, key=cost_ms)


def _drafting_prices(costs: Costs, totals: Totals, together: float) -> list[float]:
    """What a request pays in each step for the passes of the draft: its share of each pass."""
    all_rows = max(totals.at_least[0], 1.0)
    prices = [0.0]
    for length in LENGTHS[1:]:
        sharing = max(together * totals.at_least[length] / all_rows, 1.0)
        prices.append(prices[-1] + costs.drafting_ms(1, round(sharing)) / sharing)
    return prices
