"""The evidence against an answer having been drawn from the target, from its tokens' probabilities under the target.

For each token y with probability p(y), and an alternative distribution r that depends only on the tokens before y, `1 -
ε + ε · r(y) / p(y)` has mean 1 if y is drawn from p: it is an e-value. The product over an answer's tokens is an
e-value, too, and so is the mean of such products over several r and ε. Its logarithm is the answer's *evidence*. The
evidence grows with each token that r expects more than p does, whatever the length of the answer and the variation of
its entropy. Ville's inequality bounds the frequency of evidence of log(N) by chance: once in N answers.

The alternatives need no model of their own, only ranks under the target (rank 1 is the most likely token):

- `FAR`: r(j) = m / (j · (j + 1)) for ranks j >= m, here m = 8. It detects garbage, and nothing else. An engine that
  samples more sharply than the gateway knows (defaults of the model, such as top-k) makes such tokens even rarer.
- `SHIFT`: the mean of r(j) = 1 / (j · (j + 1)) over all ranks, which detects draft tokens that should have been
  rejected, and of r = 1 for rank 1, which detects a sampler that is too sharp.

Vovk and Wang, "E-values" (Annals of Statistics 2021); Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and
safe anytime-valid inference" (Statistical Science 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slipstream_gateway.upstreams.base import TokenScore

_FAR_FROM = 8
_FAR_TOLERANCE = 2.0
_EPSILONS = (0.01, 0.05, 0.3)
_MOST_RATIO = 1e6
_LEAST_LOG_P = -600.0  # exp of a lower value is too small to divide by


class Sampling(NamedTuple):
    """The sampling parameters of a request. `top_k` 0: all tokens."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


class Factors(NamedTuple):
    """Logarithms of an answer's e-values, one per ε, to be added over answers. `tail` and `sure` are the halves of
    `SHIFT`."""

    far: tuple[float, ...]
    tail: tuple[float, ...]
    sure: tuple[float, ...]

    def plus(self, other: Factors) -> Factors:
        """The sum of the factors of two answers."""
        pairs = zip(self, other, strict=True)
        return Factors(*(tuple(a + b for a, b in zip(one, two, strict=True)) for one, two in pairs))

    @property
    def far_evidence(self) -> float:
        return log_mean_exp(self.far)

    @property
    def shift_evidence(self) -> float:
        return log_mean_exp((*self.tail, *self.sure))


NOTHING = Factors(*((0.0,) * len(_EPSILONS),) * 3)


def factors_of(scores: Iterable[TokenScore], sampling: Sampling) -> Factors:
    """The factors of one answer, from its tokens' scores."""
    sums = [[0.0] * len(_EPSILONS) for _ in range(3)]
    for score in scores:
        log_p, rank = _served_logprob(score, sampling), score.rank
        tail = 1.0 / (rank * (rank + 1.0))
        weights = (_FAR_FROM * tail / _FAR_TOLERANCE if rank >= _FAR_FROM else 0.0, tail, 1.0 if rank == 1 else 0.0)
        probability = math.exp(max(log_p, _LEAST_LOG_P))
        for sum_, weight in zip(sums, weights, strict=True):
            gain = min(weight / probability, _MOST_RATIO) - 1.0
            for index, epsilon in enumerate(_EPSILONS):
                sum_[index] += math.log1p(epsilon * gain)
    return Factors(*map(tuple, sums))


def log_mean_exp(values: Sequence[float]) -> float:
    """log of the mean of exp of `values`."""
    highest = max(values)
    return highest + math.log(sum(math.exp(value - highest) for value in values) / len(values))


def _served_logprob(score: TokenScore, sampling: Sampling) -> float:
    """An upper bound of the token's log-probability after temperature and filters, at most 0.

    Only the most likely tokens are known. The bound omits the other tokens' part of the sum that temperature normalises
    by, and the probability that a filter keeps beyond the required minimum. Either omission makes the bound larger, and
    evidence smaller.
    """
    temperature = sampling.temperature
    known = score.top if score.rank <= len(score.top) else (*score.top, score.logprob)
    scaled = [logprob / temperature for logprob in known]
    log_sum = scaled[0] + math.log(sum(math.exp(value - scaled[0]) for value in scaled))
    if temperature == 1.0:
        log_sum = 0.0  # the scores are normalised already, including the unknown tokens
    kept = sampling.top_p
    if sampling.top_k:
        kept *= min(sum(math.exp(value - log_sum) for value in scaled[: sampling.top_k]), 1.0)
    return min(score.logprob / temperature - log_sum - math.log(kept), 0.0)
