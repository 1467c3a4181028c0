"""A sequential test whether sampled answers of the speculative arm have the target's distribution, by token
likelihoods.

Sampled answers differ from run to run, so that none of them is proof. Each speculative answer is compared with a plain
answer to the same request; the plain arm scores both (`request.likelihood`). Two tests run side by side per pair and
class, and either raises the alarm. Both are e-detectors (Shin, Ramdas and Rinaldo, "E-detectors", 2023): with an alarm
at log(N), the mean number of answers between two false alarms is N or more, and the evidence may be checked after every
answer.

*Modelled.* The e-values of the speculative answers are multiplied, `g ← max(0, g) + log e`, one g for each of the
alternatives, and averaged. This test is quick, and as exact as the probabilities by which the server samples are known.
The plain answers show whether they are known: the evidence against plain answers is subtracted, and if it reaches half
an alarm, the test is switched off. One answer counts up to `MOST_PER_ANSWER`, so that none raises the alarm alone.

*Paired.* If speculation is lossless, both answers have one distribution, whatever it is: the class, temperature,
filters, penalties or a grammar are the same on both sides, and nothing has to be modelled. So the difference d of their
evidence, cut to [-1, 1], has mean 0 given everything before, and `g ← max(0, g) + log(1 + λ·d)` bets on a larger one
(Waudby-Smith and Ramdas, JRSS B 2024). The cut bounds the effect of one answer: heavy tails make the test slower, never
wrong. One answer is worth a factor of 2 at most.
"""

from __future__ import annotations

import math

import msgspec

from slipstream_gateway.request.likelihood import NOTHING, Factors, log_mean_exp

FALSE_ALARM_ANSWERS = 1e8
ALARM_AT = math.log(FALSE_ALARM_ANSWERS)
MOST_PER_ANSWER = 10.5
"""In nats: two answers of garbage raise the alarm, a single one does not."""
_UNCALIBRATED_AT = ALARM_AT / 2.0
_CUT = 4.0
_BETS = (0.25, 0.75)
_ALTERNATIVES = sum(map(len, NOTHING))


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
        """Adds a pair of answers. Returns whether the speculative one counts as a mismatch: it is garbage by itself, or
        the alarm is on."""
        self.answers += 1
        if pair.is_modelled:
            self._add_modelled(pair)
        self._add_difference(pair.speculative.shift_evidence - pair.plain.shift_evidence)
        self.alarm = self.alarm or self.evidence >= ALARM_AT
        looks_like_garbage = pair.is_modelled and pair.speculative.far_evidence >= MOST_PER_ANSWER
        return self.alarm or (self.is_calibrated and looks_like_garbage)

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
