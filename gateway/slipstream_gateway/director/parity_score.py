"""Whether sampled answers of the speculative arm are the target's: a sequential test on their tokens' likelihoods.

Sampled answers differ from run to run, so that none of them is proof. What is compared is each speculative answer with
a plain one to the same request, both scored by the plain arm (`director.likelihood`): the class of the request, its
temperature, its filters and its length are the same on both sides, whatever they are, and nothing has to be modelled.
Two tests run side by side per pair and class; either raises the alarm.

*Shift.* Where speculation is lossless, both answers have one distribution, so that the difference d of their evidence,
cut to [-1, 1], has mean 0 given everything before. `g ← max(0, g) + log(1 + λ·d)` bets on d being larger; exp(g) is an
e-detector (Shin, Ramdas and Rinaldo, "E-detectors", 2023; betting after Waudby-Smith and Ramdas, JRSS B 2024): between
two alarms at g ≥ log(N) lie N answers or more on average, whatever the distributions. Cutting bounds what one answer
can do, so that heavy tails only make the test slower. One answer is worth a factor of 2 at most.

*Garbage.* That is slow for what is obvious, so that the speculative answer's own evidence counts, too, up to
`MOST_PER_ANSWER`, less what the plain answer has. It is an e-detector as far as the probabilities are those that the
server samples by. Whether they are shows in the plain answers: where these look like garbage, this test is switched
off, and the other one goes on.
"""

from __future__ import annotations

import math

import msgspec

from slipstream_gateway.director.likelihood import Factors, log_mean_exp

FALSE_ALARM_ANSWERS = 1e8
ALARM_AT = math.log(FALSE_ALARM_ANSWERS)
MOST_PER_ANSWER = 6.25
"""In nats: three answers of garbage are enough, and no two are."""
_UNCALIBRATED_AT = ALARM_AT / 2.0
_CUT = 4.0
_BETS = (0.25, 0.75)


class ScoredPair(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks against a speculative answer, and against a plain one to the same request. `is_modelled`: the
    request asks for nothing that changes the distribution beyond temperature and filters."""

    speculative: Factors
    plain: Factors
    is_modelled: bool = True


class SampledTest(msgspec.Struct, kw_only=True):
    """The test of one pair and class. Evidence is in nats; `alarm` stays until the test is replaced."""

    answers: int = 0
    garbage: float = 0.0
    plain_garbage: float = 0.0
    shifts: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(_BETS))
    is_calibrated: bool = True
    alarm: bool = False

    @property
    def evidence(self) -> float:
        """What is held against `ALARM_AT`: that of the test that has more."""
        return max(self.garbage if self.is_calibrated else 0.0, log_mean_exp(self.shifts))

    def add(self, pair: ScoredPair) -> bool:
        """Takes in a pair of answers. Returns whether the speculative one counts as a mismatch: it looks like garbage
        by itself, or the alarm is on."""
        self.answers += 1
        if pair.is_modelled:
            self._add_garbage(pair)
        self._add_difference(pair.speculative.shift_evidence - pair.plain.shift_evidence)
        self.alarm = self.alarm or self.evidence >= ALARM_AT
        looks_like_garbage = pair.is_modelled and pair.speculative.far_evidence >= MOST_PER_ANSWER
        return self.alarm or (self.is_calibrated and looks_like_garbage)

    def add_equal(self) -> None:
        """Takes in an answer whose plain replay has the same tokens: there is nothing to bet on."""
        self.answers += 1

    def _add_garbage(self, pair: ScoredPair) -> None:
        plain = min(pair.plain.far_evidence, MOST_PER_ANSWER)
        self.plain_garbage = max(0.0, self.plain_garbage) + plain
        if self.plain_garbage >= _UNCALIBRATED_AT:
            self.is_calibrated = False
        speculative = min(pair.speculative.far_evidence, MOST_PER_ANSWER)
        self.garbage = max(0.0, self.garbage) + speculative - max(0.0, plain)

    def _add_difference(self, difference: float) -> None:
        cut = min(max(difference / _CUT, -1.0), 1.0)
        self.shifts = [max(0.0, log) + math.log1p(bet * cut) for log, bet in zip(self.shifts, _BETS, strict=True)]
