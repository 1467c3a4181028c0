"""Whether sampled answers of the speculative arm are the target's: a sequential test on their tokens' likelihoods.

Sampled answers differ from run to run, so that none of them is proof. Each speculative answer is judged beside a plain
one to the same request, both scored by the plain arm (`request.likelihood`). Two tests run side by side per pair and
class; either raises the alarm. Both are e-detectors (Shin, Ramdas and Rinaldo, "E-detectors", 2023): between two alarms
at log(N) lie N answers or more on average, and it may be looked at after every answer.

*Modelled.* The speculative answer's own e-values are multiplied up, `g ← max(0, g) + log e`, one g for each of the
alternatives, and averaged. This is quick, and exact as far as the probabilities are those that the server samples by.
Whether they are shows in the plain answers: what speaks against those is taken off, and where they raise half an alarm
themselves, the test is switched off. One answer counts up to `MOST_PER_ANSWER`, so that none raises the alarm alone.

*Paired.* Where speculation is lossless both answers have one distribution, whatever it is: the class, temperature,
filters, penalties or a grammar are the same on both sides, and nothing has to be modelled. So the difference d of their
evidence, cut to [-1, 1], has mean 0 given everything before, and `g ← max(0, g) + log(1 + λ·d)` bets on a larger one
(Waudby-Smith and Ramdas, JRSS B 2024). Cutting bounds what one answer can do: heavy tails make the test slower, never
wrong. One answer is worth a factor of 2 at most.
"""

from __future__ import annotations

import math

import msgspec

from slipstream_gateway.request.likelihood import NOTHING, Factors, log_mean_exp

FALSE_ALARM_ANSWERS = 1e8
ALARM_AT = math.log(FALSE_ALARM_ANSWERS)
MOST_PER_ANSWER = 10.5
"""In nats: two answers of garbage are enough, and no single one is."""
_UNCALIBRATED_AT = ALARM_AT / 2.0
_CUT = 4.0
_BETS = (0.25, 0.75)
_ALTERNATIVES = sum(map(len, NOTHING))


class ScoredPair(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks against a speculative answer, and against a plain one to the same request. `is_modelled`: the
    request asks for nothing that changes the distribution beyond temperature and filters."""

    speculative: Factors
    plain: Factors
    is_modelled: bool = True


class SampledTest(msgspec.Struct, kw_only=True):
    """The tests of one pair and class. Evidence is in nats; `alarm` stays until this is replaced."""

    answers: int = 0
    modelled: list[float] = msgspec.field(default_factory=lambda: [0.0] * _ALTERNATIVES)
    plain: list[float] = msgspec.field(default_factory=lambda: [0.0] * _ALTERNATIVES)
    paired: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(_BETS))
    is_calibrated: bool = True
    alarm: bool = False

    @property
    def evidence(self) -> float:
        """What is held against `ALARM_AT`: that of the test that has more."""
        return max(log_mean_exp(self.modelled) if self.is_calibrated else 0.0, log_mean_exp(self.paired))

    def add(self, pair: ScoredPair) -> bool:
        """Takes in a pair of answers. Returns whether the speculative one counts as a mismatch: it looks like garbage
        by itself, or the alarm is on."""
        self.answers += 1
        if pair.is_modelled:
            self._add_modelled(pair)
        self._add_difference(pair.speculative.shift_evidence - pair.plain.shift_evidence)
        self.alarm = self.alarm or self.evidence >= ALARM_AT
        looks_like_garbage = pair.is_modelled and pair.speculative.far_evidence >= MOST_PER_ANSWER
        return self.alarm or (self.is_calibrated and looks_like_garbage)

    def add_equal(self) -> None:
        """Takes in an answer whose plain replay has the same tokens: there is nothing to bet on."""
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
