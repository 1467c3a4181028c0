"""Which draft tokens of a batch are worth their rows in the next pass of the target.

A pass of the target computes one row for each request, and one more for each draft token that it verifies. An accepted
draft token saves its request a pass; a rejected one has cost its row. `allocate` grants rows to the draft tokens that
are most likely to be accepted, as long as the expected tokens per second of the whole batch grow. `StepCosts` measures
what rows cost on this server, `Chances` how likely draft tokens are to be accepted.

The objective is the goodput of SmartSpec (Liu et al., "Optimizing Speculative Decoding for Serving Large Language
Models Using Goodput", 2024), here for each request and not for the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Numbers of rows at which the cost is measured; in between it is interpolated.
_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_COST_RATE = 0.1  # weight of a new step in the mean of a knot
_OUTLIER = 3.0  # a step that takes so many times the expected time counts as this many
_KIND_RATE, _REQUEST_RATE = 0.02, 0.25
_MOST_LOG_ODDS = 6.0
_KEPT = 0.97


def allocate(chances: Sequence[Sequence[float]], step_s: Sequence[float], draft_pass_s: float = 0.0) -> list[int]:
    """The number of draft tokens to verify for each request of a batch.

    `chances[i]` has, for each draft token that request `i` could verify, the probability that it is accepted if all
    before it are. `step_s[r]` is the time in seconds of a step with `r` rows, for up to all of them. `draft_pass_s` is
    the time of one pass of the draft model, which proposes a token for each request that still drafts.

    Returns: the lengths with the most expected tokens per second. A request gets its draft tokens in their order.
    """
    offers = []
    for request, of_request in enumerate(chances):
        reached = 1.0
        for position, chance in enumerate(of_request):
            reached *= chance
            offers.append((-reached, position, request))
    offers.sort()
    count = len(chances)
    deepest = max(map(len, chances), default=0)
    # Without drafting passes only the number of rows matters, so that the greatest depth is as good as any.
    depths = range(1, deepest + 1) if draft_pass_s > 0.0 else range(deepest, deepest + 1)
    best_rate, best_depth, best_rows = (count / step_s[count] if count else 0.0), 0, count
    for depth in depths:
        tokens, rows, drafting_s = float(count), count, depth * draft_pass_s
        for index, (negative, position, _) in enumerate(offers):
            if position < depth:
                tokens -= negative
                rows += 1
                if tokens > best_rate * (step_s[rows] + drafting_s):
                    best_rate, best_depth, best_rows = tokens / (step_s[rows] + drafting_s), depth, rows
                elif tokens - negative * (len(offers) - index - 1) <= best_rate * (step_s[rows] + drafting_s):
                    break  # no later offer is likelier, and no later step is quicker
    lengths = [0] * count
    granted = count
    for _, position, request in offers:
        if granted == best_rows:
            break
        if position < best_depth:
            lengths[request] = position + 1
            granted += 1
    return lengths


class StepCosts:
    """The time of a step by its number of rows, learned from the steps themselves.

    More rows never cost less. Numbers of rows above all that were measured cost as much as the largest measured one, so
    that they are tried.
    """

    def __init__(self) -> None:
        self._means = [0.0] * len(_KNOTS)
        self._weights = [0.0] * len(_KNOTS)

    def update(self, rows: int, seconds: float) -> None:
        """Learn from a step of `rows` rows that took `seconds`."""
        lower, share = _position(rows)
        for knot, part in ((lower, 1.0 - share), (lower + 1, share)):
            if part > 0.0:
                self._learn(knot, part, seconds)

    def _learn(self, knot: int, part: float, seconds: float) -> None:
        weight = self._weights[knot] = self._weights[knot] + part
        if weight == part:
            self._means[knot] = seconds
        else:
            limited = min(seconds, _OUTLIER * self._means[knot])
            self._means[knot] += part * max(_COST_RATE, 1.0 / weight) * (limited - self._means[knot])

    def table(self, most: int) -> list[float]:
        """Seconds of steps with 0 to `most` rows; all 1 before the first update."""
        known = self._known()
        if not known:
            return [1.0] * (most + 1)
        table, (rows, seconds) = [known[0][1]] * (min(known[0][0], most) + 1), known[0]
        for next_rows, next_s in known[1:]:
            slope = (next_s - seconds) / (next_rows - rows)
            table += [seconds + slope * (at - rows) for at in range(rows + 1, min(next_rows, most) + 1)]
            rows, seconds = next_rows, next_s
        return table + [seconds] * (most + 1 - len(table))

    def _known(self) -> list[tuple[int, float]]:
        """The measured knots with rising costs: neighbours that fall are one, at their weighted mean (pool adjacent
        violators)."""
        pools: list[tuple[float, float, list[int]]] = []
        for rows, mean, weight in zip(_KNOTS, self._means, self._weights, strict=True):
            if weight <= 0.0:
                continue
            pool = (mean, min(weight, 1.0 / _COST_RATE), [rows])
            while pools and pools[-1][0] > pool[0]:
                before = pools.pop()
                total = before[1] + pool[1]
                pool = ((before[0] * before[1] + pool[0] * pool[1]) / total, total, before[2] + pool[2])
            pools.append(pool)
        return [(rows, mean) for mean, _, knots in pools for rows in knots]


def _position(rows: int) -> tuple[int, float]:
    """The knot at or below `rows`, and the relative position towards the next one."""
    if rows >= _KNOTS[-1]:
        return len(_KNOTS) - 1, 0.0
    lower = 0
    while _KNOTS[lower + 1] <= rows:
        lower += 1
    return lower, (rows - _KNOTS[lower]) / (_KNOTS[lower + 1] - _KNOTS[lower])


class DraftRows:
    """Allocates the rows of one engine, and learns from its steps what they cost and which pay."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self.chances = Chances()
        self._draft_pass_s = 0.0

    def lengths(self, offers: Sequence[Sequence[int]], log_odds: Sequence[float], fixed_rows: int = 0) -> list[int]:
        """The number of draft tokens to verify for each request. `offers[i]` has the evidence of each draft token that
        request `i` could verify, `log_odds[i]` is the request's own. `fixed_rows` more rows are taken already."""
        chances = [self.chances.of(evidence, own) for evidence, own in zip(offers, log_odds, strict=True)]
        table = self.costs.table(len(offers) + fixed_rows + sum(map(len, offers)))
        return allocate(chances, table[fixed_rows:], self._draft_pass_s)

    def note_drafting(self, passes: int, seconds: float) -> None:
        """Learn from `passes` passes of the draft model that took `seconds`."""
        pass_s = seconds / passes
        if not self._draft_pass_s:
            self._draft_pass_s = pass_s
        self._draft_pass_s += _COST_RATE * (min(pass_s, _OUTLIER * self._draft_pass_s) - self._draft_pass_s)


class Chances:
    """The probability that a draft token is accepted, learned from the draft tokens that were verified.

    Two log-odds are added: that of the token's `evidence`, a small number that the drafter gives (its position, or the
    length of the text that matched), and that of its request, which starts at 0. Both follow the outcomes by stochastic
    gradient steps on the log-likelihood.
    """

    def __init__(self) -> None:
        self._log_odds: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def of(self, evidence: Sequence[int], own: float) -> list[float]:
        """The probability of each draft token of a request with log-odds `own`, given that those before it are
        accepted."""
        return [_probability(self._log_odds.get(kind, 0.0) + own) for kind in evidence]

    def learn(self, evidence: Sequence[int], accepted: int, own: float) -> float:
        """Learn from the verified draft tokens of one request, of which the first `accepted` were accepted.

        Returns: the request's new log-odds.
        """
        for position, kind in enumerate(evidence[: accepted + 1]):
            known = self._log_odds.get(kind, 0.0)
            error = (position < accepted) - _probability(known + own)
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            self._log_odds[kind] = _bounded(known + max(_KIND_RATE, 2.0 / (1 + count)) * error)
            own = _bounded(own + _REQUEST_RATE * error)
        return own


def kept(own: float) -> float:
    """The log-odds of a request after a step without draft tokens: a request that was taken for unpredictable is tried
    again after some steps."""
    return own * _KEPT


def _probability(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-_bounded(log_odds)))


def _bounded(log_odds: float) -> float:
    return max(-_MOST_LOG_ODDS, min(_MOST_LOG_ODDS, log_odds))
