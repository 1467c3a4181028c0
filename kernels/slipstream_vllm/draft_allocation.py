"""Which draft tokens of a batch are worth their rows in the next pass of the target.

A pass of the target computes one row for each request, and one more for each draft token that it verifies. An accepted
draft token saves its request a pass; a rejected one has cost its row. `allocate` grants rows to the draft tokens that
are most likely to be accepted, as long as the expected tokens per second of the whole batch grow. `StepCosts` measures
what rows cost on this server, `Chances` how likely draft tokens are to be accepted.

The objective is the goodput of SmartSpec (Liu et al., "Optimizing Speculative Decoding for Serving Large Language
Models Using Goodput", 2024), here for each request and not for the whole batch.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Sequence

# Numbers of rows at which the cost is measured; in between it is interpolated. Each small number has its own: if a step
# of 7 rows were counted for 6 and for 8 rows, the seventh row would seem free.
_KNOTS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
_SMALLEST_RATE = 0.05  # weight of a new step in a cost, once enough steps have been averaged
_NOISE = 0.1  # standard deviation of a step's time, as a share of it
_REQUEST_SPREAD, _LEAST_SPREAD = 0.5, 0.02  # of a request's cost, as a share of its part of a step
_MOST_OF_STEP, _SMALLEST_SHARE = 0.9, 0.1
_HOPED_SHARE = 0.25  # of the cost of the smallest measured number of rows: that of none
_OUTLIER = 3.0  # a step that takes so many times the expected time counts as this many
_FIRST_RETRY, _LAST_RETRY = 64, 1024  # avoided steps after which something is tried again
_KIND_RATE, _REQUEST_RATE = 0.02, 0.1
_HOPED_LOG_ODDS = 1.5  # of evidence that is unknown, so that it is tried
_MOST_LOG_ODDS = 6.0
_KEPT = 0.97
_SLOWER = 0.02  # share by which a protected request's tokens may take longer than without drafts


def allocate(
    chances: Sequence[Sequence[float]],
    step_s: Sequence[float],
    drafting_s: Sequence[float] = (),
    fixed: Sequence[bool] = (),
    copied: Sequence[bool] = (),
    protected: Sequence[str | None] = (),
) -> list[int]:
    """The number of draft tokens to verify for each request of a batch.

    `chances[i]` has, for each draft token that request `i` could verify, the probability that it is accepted if all
    before it are. `step_s[r]` is the time in seconds of a step with `r` rows, for up to all of them. `drafting_s[d]` is
    the time of `d` passes of the draft model, each of which proposes a token for each request that still drafts; empty
    without a draft model. Requests whose `fixed[i]` is true verify all of their draft tokens, and those whose
    `copied[i]` is true need no pass of the draft model. `protected[i]` is the class of a protected request, None for
    others: each class has together as many expected tokens per second, but for a share of 0.02, as in a step that
    verifies draft tokens of `fixed` requests alone. More classes than requests: of requests that wait for a first
    token. By default there are none of any.

    Returns: the lengths with the most expected tokens per second. A request gets its draft tokens in their order.
    """
    reached = [list(itertools.accumulate(of_request, operator.mul)) for of_request in chances]
    passes = [not copy for copy in copied] or [True] * len(chances)
    lengths = [0] * len(chances)
    tokens, rows = [1.0] * len(chances), len(chances)
    for request, _ in filter(operator.itemgetter(1), enumerate(fixed)):
        lengths[request] = len(reached[request])
        tokens[request] += sum(reached[request])
        rows += len(reached[request])
    depth = max(map(operator.mul, lengths, passes), default=0)
    offers = sorted(
        (-chance, position + 1, request, (position + 1) * passes[request])
        for request, of_request in enumerate(reached)
        if not lengths[request]
        for position, chance in enumerate(of_request)
    )
    depth, count = _best(offers, tokens, rows, depth, step_s, drafting_s, protected)
    for _, length, request, _ in itertools.islice((offer for offer in offers if offer[3] <= depth), count):
        lengths[request] = length
    return lengths


def _best(
    offers: Sequence[tuple[float, int, int, int]],
    tokens: Sequence[float],
    rows: int,
    depth: int,
    step_s: Sequence[float],
    drafting_s: Sequence[float],
    protected: Sequence[str | None],
) -> tuple[int, int]:
    """The best number of passes of the draft model, and how many of the likeliest `offers` that need no more of them to
    verify, beside the `tokens` of each request that `rows` rows are expected to yield after `depth` passes. An offer is
    its negative probability, the length of its request's draft up to it, its request, and the passes that it needs;
    they are sorted.
    """
    deepest = max((passes for *_, passes in offers), default=0)
    least_s = step_s[rows] + (drafting_s[depth] if drafting_s else 0.0)
    best_rate, best = (sum(tokens) / least_s if rows else 0.0), (0, 0)
    # Without drafting passes only the number of rows matters, so that the greatest depth is as good as any.
    for limit in range(depth, max(depth, deepest) + 1) if drafting_s else [deepest]:
        expected, count, passes_s = sum(tokens), 0, drafting_s[limit] if drafting_s else 0.0
        gains = _Gains(tokens, protected)
        for index, (negative, _, request, passes) in enumerate(offers):
            if passes <= limit:
                expected -= negative
                gains.add(request, -negative)
                count += 1
                step = step_s[rows + count] + passes_s
                if expected > best_rate * step and step <= least_s * gains.least * (1.0 + _SLOWER):
                    best_rate, best = expected / step, (limit, count)
                elif expected - negative * (len(offers) - index - 1) <= best_rate * step:
                    break  # no later offer is likelier, and no later step is quicker
    return best


class _Gains:
    """The factors by which protected classes have more expected tokens in a step than without the drafts of requests
    that are not fixed."""

    def __init__(self, tokens: Sequence[float], protected: Sequence[str | None]) -> None:
        self._classes = protected
        self._before: dict[str, float] = {}
        for own, before in zip(protected, itertools.chain(tokens, itertools.repeat(1.0)), strict=False):
            if own is not None:
                self._before[own] = self._before.get(own, 0.0) + before
        self._tokens = dict(self._before)

    def add(self, request: int, tokens: float) -> None:
        if request < len(self._classes) and (own := self._classes[request]) is not None:
            self._tokens[own] += tokens

    @property
    def least(self) -> float:
        """That of the class that gains least; infinite if none is protected."""
        return min((self._tokens[own] / before for own, before in self._before.items()), default=math.inf)


class Retry:
    """Says when something that seemed not to pay is tried again: after some steps in which it could have been tried,
    each time after twice as many. What is never tried again is never found to have become better."""

    def __init__(self) -> None:
        self._avoided = 0
        self._after = _FIRST_RETRY

    def tried(self) -> None:
        self._avoided = 0

    def avoided(self) -> bool:
        """A step could have tried it. Returns: whether it is time to forget what is known of it."""
        self._avoided += 1
        if self._avoided < self._after:
            return False
        self._avoided, self._after = 0, min(2 * self._after, _LAST_RETRY)
        return True


class Cost:
    """The mean of some times in seconds, the later ones with more weight; None until it is measured. `requests` is the
    mean number of requests of their steps. A cost that is avoided is forgotten (see `Retry`): a single slow step may be
    the reason that it seems dear.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.requests = self.weight = 0.0
        self._retry = Retry()

    def measured(self, seconds: float, part: float = 1.0, requests: float = 0.0) -> None:
        """`part` in (0, 1] of a step took `seconds`."""
        self._retry.tried()
        self.weight += part
        if self.seconds is None:
            self.seconds, self.requests = seconds, requests
        rate = part * max(_SMALLEST_RATE, 1.0 / self.weight)
        self.seconds += rate * (min(seconds, _OUTLIER * self.seconds) - self.seconds)
        self.requests += rate * (requests - self.requests)

    def avoided(self) -> None:
        """A step could have measured it."""
        if self._retry.avoided():
            self.seconds, self.weight = None, 0.0


class RequestCost:
    """What each request adds to a step beyond its rows, such as the attention over its text, in seconds.

    It is learned from steps of as many rows for more or fewer requests than usual, by a scalar Kalman filter.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._variance: float | None = None

    def update(self, more_requests: float, more_s: float, step_s: float, requests: int) -> None:
        """Learn from a step for `requests` that took `step_s`: `more_s` longer than was measured for as many rows and
        `more_requests` fewer requests."""
        share = step_s / requests
        if self._variance is None:
            self._variance = (_REQUEST_SPREAD * share) ** 2
        noise = (_NOISE * step_s) ** 2
        gain = self._variance * more_requests / (more_requests**2 * self._variance + noise)
        self._variance = max(self._variance * (1.0 - gain * more_requests), (_LEAST_SPREAD * share) ** 2)
        self.seconds = min(
            max(self.seconds + gain * (more_s - self.seconds * more_requests), 0.0), _MOST_OF_STEP * share
        )


class StepCosts:
    """The time of a step by its numbers of rows and of requests, learned from the steps themselves.

    More rows never cost less. Numbers of rows outside of those that were measured are taken for cheap, so that they are
    tried: fewer rows cost down to a quarter of the smallest measured number, more rows as much as the largest one.
    """

    def __init__(self) -> None:
        self._costs = [Cost() for _ in _KNOTS]
        self._request = RequestCost()

    def update(self, requests: int, rows: int, seconds: float, most: int = 0) -> None:
        """Learn from a step of `rows` rows for `requests` that took `seconds` and could have had `most` rows."""
        lower, share = _position(rows)
        nearest = self._costs[lower + (share > 0.5)]
        if nearest.seconds is not None:
            limited_s = min(seconds, _OUTLIER * nearest.seconds)
            more_s = limited_s - nearest.seconds
            self._request.update(requests - nearest.requests, more_s, limited_s, requests)
        self._costs[lower].measured(seconds, 1.0 - share, requests)
        if share > 0.0:
            self._costs[lower + 1].measured(seconds, share, requests)
        for knot in range(lower + 2, len(_KNOTS)):
            if _KNOTS[knot] > most:
                break
            self._costs[knot].avoided()

    def table(self, requests: int, most: int) -> list[float]:
        """Seconds of steps for `requests` with 0 to `most` rows; all 1 before the first update."""
        known = self._known(requests)
        if not known:
            return [1.0] * (most + 1)
        return _interpolated([(0, _HOPED_SHARE * known[0][1]), *known], most)

    def _known(self, requests: int) -> list[tuple[int, float]]:
        """The measured knots, as for `requests`, with rising costs: neighbours that fall are one, at their weighted
        mean (pool adjacent violators)."""
        pools: list[tuple[float, float, list[int]]] = []
        for rows, cost in zip(_KNOTS, self._costs, strict=True):
            if cost.seconds is None:
                continue
            seconds = cost.seconds + (requests - cost.requests) * self._request.seconds
            pool = (max(seconds, _SMALLEST_SHARE * cost.seconds), min(cost.weight, 1.0 / _SMALLEST_RATE), [rows])
            while pools and pools[-1][0] > pool[0]:
                before = pools.pop()
                total = before[1] + pool[1]
                pool = ((before[0] * before[1] + pool[0] * pool[1]) / total, total, before[2] + pool[2])
            pools.append(pool)
        return [(rows, mean) for mean, _, knots in pools for rows in knots]


def _interpolated(known: Sequence[tuple[int, float]], most: int) -> list[float]:
    """The values at 0 to `most` between `known` ones, of which the first is at 0; the last one beyond it."""
    table = [known[0][1]]
    for (before, low), (after, high) in itertools.pairwise(known):
        slope = (high - low) / (after - before)
        table += [low + slope * (at - before) for at in range(before + 1, min(after, most) + 1)]
    return table + [known[-1][1]] * (most + 1 - len(table))


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
        self._drafting: dict[int, list[Cost]] = {}

    def lengths(
        self,
        offers: Sequence[Sequence[int]],
        log_odds: Sequence[float],
        fixed: Sequence[bool] = (),
        copied: Sequence[bool] = (),
        models: Collection[int] = (0,),
        protected: Sequence[str | None] = (),
    ) -> list[int]:
        """The number of draft tokens to verify for each request. `offers[i]` has the evidence of each draft token that
        request `i` could verify, `log_odds[i]` is the request's own. `fixed`, `copied` and `protected` are those of
        `allocate`. `models` are the numbers of the draft models that the requests have."""
        chances = [self.chances.of(evidence, own) for evidence, own in zip(offers, log_odds, strict=True)]
        table = self._costs.table(len(offers), len(offers) + sum(map(len, offers)))
        most = max(map(len, offers), default=0)
        tables = [found for model in models if (found := self._drafting_table(model, most))]
        passes = [sum(of_models) for of_models in zip(*tables, strict=True)]
        lengths = allocate(chances, table, passes, fixed, copied, protected)
        self.chances.avoided(offers, lengths)
        return lengths

    def note_step(self, requests: int, rows: int, seconds: float, most: int) -> None:
        """Learn from a step of `rows` rows for `requests` that took `seconds` and could have had `most` rows."""
        self._costs.update(requests, rows, seconds, most)

    def note_drafting(self, passes: int, seconds: float, most: int, model: int = 0) -> None:
        """Learn from a step whose `passes` passes of the draft `model`, of `most` possible ones, took `seconds`."""
        costs = self._drafting.setdefault(model, [])
        costs += [Cost() for _ in range(most + 1 - len(costs))]
        if passes:
            costs[passes].measured(seconds)
        for cost in costs[passes + 1 : most + 1]:
            cost.avoided()

    def _drafting_table(self, model: int, most: int) -> list[float]:
        """Seconds of 0 to `most` passes of a draft model; empty before the first. More passes than were measured are
        taken for as quick as the largest measured number, so that they are tried."""
        costs = self._drafting.get(model, [])
        known = [(passes, cost.seconds) for passes, cost in enumerate(costs) if cost.seconds is not None]
        rising = [(passes, max(other for at, other in known if at <= passes)) for passes, _ in known]
        return _interpolated([(0, 0.0), *rising], most) if known else []


class Chances:
    """The probability that a draft token is accepted, learned from the draft tokens that were verified.

    Two log-odds are added: that of the token's `evidence`, a small number that the drafter gives (its position, or the
    length of the text that matched), and that of its request, which starts at 0. Both follow the outcomes by stochastic
    gradient steps on the log-likelihood. Evidence that is avoided is forgotten (see `Retry`): after a spell of texts
    that the drafter cannot predict, others may come.
    """

    def __init__(self) -> None:
        self._log_odds: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._retries: dict[int, Retry] = {}

    def of(self, evidence: Sequence[int], own: float) -> list[float]:
        """The probability of each draft token of a request with log-odds `own`, given that those before it are
        accepted."""
        return [_probability(self._log_odds.get(kind, _HOPED_LOG_ODDS) + own) for kind in evidence]

    def expected(self, evidence: Sequence[int], own: float) -> float:
        """The mean number of accepted draft tokens, if all are verified."""
        reached, expected = 1.0, 0.0
        for chance in self.of(evidence, own):
            reached *= chance
            expected += reached
        return expected

    def learn(self, evidence: Sequence[int], accepted: int, own: float) -> float:
        """Learn from the verified draft tokens of one request, of which the first `accepted` were accepted.

        Returns: the request's new log-odds.
        """
        for position, kind in enumerate(evidence[: accepted + 1]):
            known = self._log_odds.get(kind, _HOPED_LOG_ODDS)
            error = (position < accepted) - _probability(known + own)
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            self._log_odds[kind] = _bounded(known + max(_KIND_RATE, 2.0 / (1 + count)) * error)
            own = _bounded(own + _REQUEST_RATE * error)
        return own

    def avoided(self, offers: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        """A step verifies the first `lengths` of the draft tokens with the evidence `offers`, and not the others."""
        verified = {kind for evidence, length in zip(offers, lengths, strict=True) for kind in evidence[:length]}
        for kind in {kind for evidence in offers for kind in evidence}:
            retry = self._retries.setdefault(kind, Retry())
            if kind in verified:
                retry.tried()
            elif retry.avoided():
                self._log_odds.pop(kind, None)
                self._counts.pop(kind, None)


def kept(own: float) -> float:
    """The log-odds of a request after a step without draft tokens: a request that was taken for unpredictable is tried
    again after some steps."""
    return own * _KEPT


def _probability(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-_bounded(log_odds)))


def _bounded(log_odds: float) -> float:
    return max(-_MOST_LOG_ODDS, min(_MOST_LOG_ODDS, log_odds))
