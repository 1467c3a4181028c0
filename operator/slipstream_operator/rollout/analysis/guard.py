"""A guard detects when the mean of a stream of requests breaks a limit: an e-CUSUM.

Each request has an x in [0, 1], whose mean has the limit m. For each request the guard bets a share λ against "the mean
keeps to m": `g ← max(0, g) + log(1 + λ·excess)`, with excess = m − x for a floor and x − m for a cap. While the mean
keeps to m, exp(g) is an e-detector, for any other behaviour of the stream and any dependence on earlier values: two
alarms at g ≥ log(N) are N requests or more apart on average (Shin, Ramdas and Rinaldo, "E-detectors", 2023). A weighted
mean of e-detectors is an e-detector, too, so the guard bets several λ at once. A large λ detects large changes early;
small changes need a small λ.

Busy or broken servers also break a limit on times or errors. A guard of such a limit therefore counts the control's
answers of the same time, too. A sequential test (Wald, 1947) then compares two hypotheses. In one, the control keeps to
the limit, or breaks it half as often as the guarded requests. In the other, the control breaks it as often.
"""

from __future__ import annotations

import math

import msgspec

from slipstream_operator.rollout.analysis.means import log_mean

# A single request must not lose the whole bet: 1 + λ·excess is at least 0.25.
_MOST_AT_STAKE = 0.75
_MOST_BROKEN = 0.99  # with a share of 1, one answer of the control that keeps to the limit would be proof


def bets_of(wanted: tuple[float, ...], *, limit: float, floor: bool) -> tuple[float, ...]:
    """The `wanted` λ, each limited so that 1 + λ·excess stays positive. The lowest excess is −(1 − m) for a floor m, at
    x = 1, and −m for a cap m, at x = 0."""
    worst = 1.0 - limit if floor else limit
    most = _MOST_AT_STAKE / worst if worst > 0.0 else math.inf
    return tuple(min(bet, most) for bet in wanted)


class Guard(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """The state of one guard: a few floats, written into the checkpoint as they are.

    `logs` has one g per bet. `samples` counts all requests. A run starts with the first request after every g was 0 or
    less, or after `begin_comparison`. `run_samples` counts its requests, and `run_total` is the sum of their x.
    `control` counts the control's requests in the run, and `control_total` is the sum of their x. A latched guard with
    an `alarm` ignores requests until it is replaced. The alarm of any other guard ends when the statistic is below
    `alarm_at` again.
    """

    samples: int = 0
    logs: list[float] = []
    run_samples: int = 0
    run_total: float = 0.0
    alarm: bool = False
    control: int = 0
    control_total: float = 0.0

    def add(
        self,
        x: float,
        excess: float,
        bets: tuple[float, ...],
        *,
        alarm_at: float,
        min_samples: int,
        latched: bool = True,
    ) -> None:
        """Add a request. `alarm_at` is log(N). There is no alarm before `min_samples` requests."""
        if self.alarm and latched:
            return
        logs = self.logs
        if len(logs) != len(bets):
            self.logs = logs = [0.0] * len(bets)
        self.samples += 1
        highest = max(logs)
        if highest <= 0.0:
            self.begin_comparison()
        self.run_samples += 1
        self.run_total += x
        for index, bet in enumerate(bets):
            before = logs[index]
            logs[index] = (before if before > 0.0 else 0.0) + math.log1p(bet * excess)
        # The statistic is at most the highest g, so most requests need only this comparison.
        hit = self.samples >= min_samples and max(logs) >= alarm_at
        self.alarm = hit and self.statistic >= alarm_at
        if self.alarm and not latched:
            most = alarm_at + math.log(len(logs))
            logs[:] = [min(log, most) for log in logs]

    def begin_comparison(self) -> None:
        """Start a new run, which resets the counts of both arms. Each g stays."""
        self.run_samples, self.run_total, self.control, self.control_total = 0, 0.0, 0, 0.0

    def compare(self, x: float) -> None:
        """Add a request of the control, if the run has started."""
        if self.run_samples:
            self.control += 1
            self.control_total += x

    @property
    def statistic(self) -> float:
        """The log of the mean of exp(g) over the bets. It is compared with log(N)."""
        return log_mean(self.logs) if self.logs else 0.0

    @property
    def observed(self) -> float | None:
        """The mean of x in the run."""
        return self.run_total / self.run_samples if self.run_samples else None

    def blame(self, limit: float) -> float:
        """The evidence that the control breaks a cap on a share less often than the guarded requests do, as a log
        likelihood ratio. A value below 0 is evidence that the control breaks the cap as often."""
        share = min(self.observed or 0.0, _MOST_BROKEN)
        if share <= limit:
            return 0.0
        return log_mean([self._likelihood(less) - self._likelihood(share) for less in (limit, max(limit, share / 2.0))])

    def _likelihood(self, share: float) -> float:
        """The log of the probability of the control's answers, up to a constant, if a `share` of them breaks the
        cap."""
        kept = self.control - self.control_total
        return self.control_total * math.log(max(share, 1e-9)) + kept * math.log(1.0 - share)
