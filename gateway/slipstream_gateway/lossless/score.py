"""The test whether sampled answers have the target's distribution, by the probabilities of their tokens under the
target: of a check's probes at once, and of traffic answer by answer.

*Evidence of one answer.* For each token y with probability p(y), and an alternative distribution r that depends only on
the tokens before y, `1 - ε + ε · r(y) / p(y)` has mean 1 if y is drawn from p: it is an e-value. The product over an
answer's tokens is an e-value, too, and so is the mean of such products over several r and ε. Its logarithm is the
answer's *evidence*. The evidence grows with each token that r expects more than p does, whatever the length of the
answer and the variation of its entropy. Ville's inequality bounds the frequency of evidence of log(N) by chance: once
in N answers. The alternatives need no model of their own, only ranks under the target (rank 1 is the most likely
token):

- `FAR`: r(j) = m / (j · (j + 1)) for ranks j >= m, here m = 8. It detects garbage, and nothing else. An engine that
  samples more sharply than the gateway knows (defaults of the model, such as top-k) makes such tokens even rarer.
- `SHIFT`: the mean of r(j) = 1 / (j · (j + 1)) over all ranks, which detects draft tokens that should have been
  rejected, and of r = 1 for rank 1, which detects a sampler that is too sharp.

*Evidence of a check.* The e-values of its answers are multiplied; the higher one of the two kinds of alternatives
counts, less log(2) for the choice.

*Evidence of traffic.* Sampled answers differ from run to run, so that none of them is proof. Each speculative
answer is compared with a plain answer to the same request; the plain arm scores both. Two tests run side by side, and
either raises the alarm. Both are e-detectors: with an alarm at log(N), the mean number of answers between two false
alarms is N or more, and the evidence may be checked after every answer.

- *Modelled.* The e-values of the speculative answers are multiplied, `g ← max(0, g) + log e`, one g for each of the
  alternatives, and averaged. This test is quick, and as exact as the probabilities by which the server samples are
  known. The plain answers show whether they are known: the evidence against plain answers is subtracted, and if it
  reaches half an alarm, the test is switched off. One answer counts up to `MOST_PER_ANSWER`, so that none raises the
  alarm alone.
- *Paired.* If speculation is lossless, both answers have one distribution, whatever it is: the class, temperature,
  filters, penalties or a grammar are the same on both sides, and nothing has to be modelled. So the difference d of
  their evidence, cut to [-1, 1], has mean 0 given everything before, and `g ← max(0, g) + log(1 + λ·d)` bets on a
  larger one. The cut bounds the effect of one answer: heavy tails make the test slower, never wrong. One answer is
  worth a factor of 2 at most.

Vovk and Wang, "E-values" (Annals of Statistics 2021); Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and
safe anytime-valid inference" (Statistical Science 2023); Shin, Ramdas and Rinaldo, "E-detectors" (2023); Waudby-Smith
and Ramdas (JRSS B 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from slipstream_gateway.lossless.token_scores import TokenScore

_FAR_FROM = 8
_FAR_TOLERANCE = 2.0
_EPSILONS = (0.01, 0.05, 0.3)
_MOST_RATIO = 1e6
_LEAST_LOG_P = -600.0  # exp of a lower value is too small to divide by
FALSE_ALARM_ANSWERS = 1e8
ALARM_AT = math.log(FALSE_ALARM_ANSWERS)
MOST_PER_ANSWER = 10.5
"""In nats: two answers of garbage raise the alarm, a single one does not."""
_UNCALIBRATED_AT = ALARM_AT / 2.0
_CUT = 4.0
_BETS = (0.25, 0.75)
_ALTERNATIVES = 3 * len(_EPSILONS)


class Sampling(NamedTuple):
    """The sampling parameters of a request. `top_k` 0: all tokens."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


class Factors(NamedTuple):
    """Logarithms of an answer's e-values, one per ε. `tail` and `sure` are the halves of `SHIFT`."""

    far: tuple[float, ...]
    tail: tuple[float, ...]
    sure: tuple[float, ...]

    @property
    def far_evidence(self) -> float:
        return log_mean_exp(self.far)

    @property
    def shift_evidence(self) -> float:
        return log_mean_exp((*self.tail, *self.sure))


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


def evidence_of(answers: Sequence[Factors]) -> float:
    """The evidence of a fixed number of answers together, in nats."""
    far, tail, sure = (tuple(map(sum, zip(*kind, strict=True))) for kind in zip(*answers, strict=True))
    total = Factors(far, tail, sure)
    return max(total.far_evidence, total.shift_evidence) - math.log(2.0)


class ScoredPair(msgspec.Struct, frozen=True, kw_only=True):
    """The factors of a speculative answer, and of a plain one to the same request. `is_modelled`: no parameter of the
    request changes the distribution beyond temperature and filters."""

    speculative: Factors
    plain: Factors
    is_modelled: bool = True


class SampledTest(msgspec.Struct, kw_only=True):
    """The tests of one pair and class. Evidence is in nats; `alarm` stays until the object is replaced."""

    answers: int = 0
    modelled: list[float] = msgspec.field(default_factory=lambda: [0.0] * _ALTERNATIVES)
    plain: list[float] = msgspec.field(default_factory=lambda: [0.0] * _ALTERNATIVES)
    paired: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(_BETS))
    is_calibrated: bool = True
    alarm: bool = False

    @property
    def evidence(self) -> float:
        """The evidence to compare with `ALARM_AT`: the higher one of the two tests."""
        return max(log_mean_exp(self.modelled) if self.is_calibrated else 0.0, log_mean_exp(self.paired))

    def add(self, pair: ScoredPair) -> bool:
        """Adds a pair of answers. Returns whether the speculative one counts as a mismatch: it is garbage, or the alarm
        is on."""
        self.answers += 1
        if pair.is_modelled:
            self._add_modelled(pair)
        self._add_difference(pair.speculative.shift_evidence - pair.plain.shift_evidence)
        self.alarm = self.alarm or self.evidence >= ALARM_AT
        return self.alarm or self.is_garbage(pair)

    def is_garbage(self, pair: ScoredPair) -> bool:
        """Whether the speculative answer is garbage by itself."""
        return self.is_calibrated and pair.is_modelled and pair.speculative.far_evidence >= MOST_PER_ANSWER

    def add_equal(self) -> None:
        """Counts an answer whose plain replay has the same tokens. It adds no evidence."""
        self.answers += 1

    def _add_modelled(self, pair: ScoredPair) -> None:
        for index, (speculative, plain) in enumerate(zip(_logs(pair.speculative), _logs(pair.plain), strict=True)):
            self.plain[index] = max(0.0, self.plain[index]) + plain
            self.modelled[index] = max(0.0, self.modelled[index]) + speculative - max(0.0, plain)
        if log_mean_exp(self.plain) >= _UNCALIBRATED_AT:
            self.is_calibrated = False

    def _add_difference(self, difference: float) -> None:
        cut = min(max(difference / _CUT, -1.0), 1.0)
        self.paired = [max(0.0, log) + math.log1p(bet * cut) for log, bet in zip(self.paired, _BETS, strict=True)]


def _logs(factors: Factors) -> list[float]:
    return [min(log, MOST_PER_ANSWER) for logs in factors for log in logs]


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
