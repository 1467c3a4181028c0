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

# Numbers of rows at which the cost is measured; in between it is interpolated. Each small number has its own: if a step
# of 7 rows were counted for 6 and for 8 rows, the seventh row would seem free.
_KNOTS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_SMALLEST_RATE = 0.05  # weight of a new step in a cost, once enough steps have been averaged
_OUTLIER = 3.0  # a step that takes so many times the expected time counts as this many
_FIRST_RETRY, _LAST_RETRY = 16, 1024  # avoided steps after which a cost is measured again
_KIND_RATE, _REQUEST_RATE = 0.02, 0.1
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


class Cost:
    """The mean of some times in seconds, the later ones with more weight; None until it is measured.

    A cost that seemed too dear would never be measured again, although a single slow step may be the reason. So it is
    forgotten after some steps in which it could have been measured, each time after twice as many.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.weight = 0.0
        self._unmeasured = 0
        self._retried_after = _FIRST_RETRY

    def measured(self, seconds: float, part: float = 1.0) -> None:
        """`part` in (0, 1] of a step took `seconds`."""
        self._unmeasured = 0
        self.weight += part
        if self.seconds is None:
            self.seconds = seconds
        limited = min(seconds, _OUTLIER * self.seconds)
        self.seconds += part * max(_SMALLEST_RATE, 1.0 / self.weight) * (limited - self.seconds)

    def avoided(self) -> None:
        """A step could have measured it."""
        self._unmeasured += 1
        if self._unmeasured >= self._retried_after:
            self.seconds, self.weight, self._unmeasured = None, 0.0, 0
            self._retried_after = min(2 * self._retried_after, _LAST_RETRY)


class StepCosts:
    """The time of a step by its number of rows, learned from the steps themselves.

    More rows never cost less. Numbers of rows outside of those that were measured are taken for cheap, so that they are
    tried: fewer rows cost down to half of the smallest measured number, more rows as much as the largest one.
    """

    def __init__(self) -> None:
        self._costs = [Cost() for _ in _KNOTS]

    def update(self, rows: int, seconds: float, most: int = 0) -> None:
        """Learn from a step of `rows` rows that took `seconds` and could have had `most` rows."""
        lower, share = _position(rows)
        self._costs[lower].measured(seconds, 1.0 - share)
        if share > 0.0:
            self._costs[lower + 1].measured(seconds, share)
        for knot in range(lower + 2, len(_KNOTS)):
            if _KNOTS[knot] > most:
                break
            self._costs[knot].avoided()

    def table(self, most: int) -> list[float]:
        """Seconds of steps with 0 to `most` rows; all 1 before the first update."""
        known = self._known()
        if not known:
            return [1.0] * (most + 1)
        rows, seconds = known[0]
        table = [seconds * (0.5 + 0.5 * at / rows) for at in range(min(rows, most) + 1)]
        for next_rows, next_s in known[1:]:
            slope = (next_s - seconds) / (next_rows - rows)
            table += [seconds + slope * (at - rows) for at in range(rows + 1, min(next_rows, most) + 1)]
            rows, seconds = next_rows, next_s
        return table + [seconds] * (most + 1 - len(table))

    def _known(self) -> list[tuple[int, float]]:
        """The measured knots with rising costs: neighbours that fall are one, at their weighted mean (pool adjacent
        violators)."""
        pools: list[tuple[float, float, list[int]]] = []
        for rows, cost in zip(_KNOTS, self._costs, strict=True):
            if cost.seconds is None:
                continue
            pool = (cost.seconds, min(cost.weight, 1.0 / _SMALLEST_RATE), [rows])
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
        self.chances = Chances()
        self._costs = StepCosts()
        self._draft_pass = Cost()

    def lengths(self, offers: Sequence[Sequence[int]], log_odds: Sequence[float], fixed_rows: int = 0) -> list[int]:
        """The number of draft tokens to verify for each request. `offers[i]` has the evidence of each draft token that
        request `i` could verify, `log_odds[i]` is the request's own. `fixed_rows` more rows are taken already."""
        chances = [self.chances.of(evidence, own) for evidence, own in zip(offers, log_odds, strict=True)]
        table = self._costs.table(len(offers) + fixed_rows + sum(map(len, offers)))
        return allocate(chances, table[fixed_rows:], self._draft_pass.seconds or 0.0)

    def note_step(self, rows: int, seconds: float, most: int) -> None:
        """Learn from a step of `rows` rows that took `seconds` and could have had `most` rows."""
        self._costs.update(rows, seconds, most)

    def note_drafting(self, passes: int, seconds: float) -> None:
        """Learn from a step whose `passes` passes of the draft model took `seconds`; 0 if it could have had some."""
        if passes:
            self._draft_pass.measured(seconds / passes)
        else:
            self._draft_pass.avoided()


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
