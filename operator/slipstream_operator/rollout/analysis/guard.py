"""A guard that watches a stream of requests and detects when its mean breaks a limit: an e-CUSUM.

For each request with x in [0, 1] and a limit m of its mean, the guard bets a share λ against "the mean keeps to m":
`g ← max(0, g) + log(1 + λ·excess)`, excess = m − x for a floor and x − m for a cap. While the mean keeps to m, whatever
else the stream does and however its values depend on what was before, exp(g) is an e-detector: between two alarms at
g ≥ log(N) lie N requests or more on average (Shin, Ramdas and Rinaldo, "E-detectors", 2023). A weighted mean of such
e-detectors is one, too, so that several λ are bet at once: a large one sees large changes early, a small one sees
small ones at all.

A limit on times or errors is also broken when servers are busy or broken. Its guard counts the control's answers of the
same time, too. A sequential test (Wald, 1947) then compares two hypotheses: the control keeps to the limit, or breaks
it half as often; and the control breaks it as often.
"""

from __future__ import annotations

import math

import msgspec

# A bet may not lose everything at once: 1 + λ·excess stays at 0.25 or more.
_MOST_AT_STAKE = 0.75
_MOST_BROKEN = 0.99  # a share of 1 would make one answer of the control proof


def bets_of(wanted: tuple[float, ...], *, limit: float, floor: bool) -> tuple[float, ...]:
    """`wanted` λ, cut so that the guard's argument stays positive: the worst excess is −(1 − m) for a floor m, which
    one answer at 1 has, and −m for a cap m, which one at 0 has."""
    worst = 1.0 - limit if floor else limit
    most = _MOST_AT_STAKE / worst if worst > 0.0 else math.inf
    return tuple(min(bet, most) for bet in wanted)


class Guard(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """The state of one guard; a few floats, written into the checkpoint as they are.

    `logs` has one g per bet. `samples` is how many requests it saw. The run is what it saw since it last had no doubt
    at all, `run_total` the sum of their x: what `observed` is of. `control` is how many answers of the control there
    were in the run, `control_total` the sum of their x. With `alarm` it stands still until it is replaced, unless it is
    not `latched`: then the alarm ends when what it sees is good again.
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
        """Take in a request. `alarm_at` is log(N); before `min_samples` there is no alarm."""
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
        # The mean is never above the highest: most requests need no more than this look.
        hit = self.samples >= min_samples and max(logs) >= alarm_at
        self.alarm = hit and self.statistic >= alarm_at
        if self.alarm and not latched:
            most = alarm_at + math.log(len(logs))
            logs[:] = [min(log, most) for log in logs]

    def begin_comparison(self) -> None:
        """Counts the answers of both arms anew. The guard's own evidence stays."""
        self.run_samples, self.run_total, self.control, self.control_total = 0, 0.0, 0, 0.0

    def compare(self, x: float) -> None:
        """Take in an answer of the control."""
        if self.run_samples:
            self.control += 1
            self.control_total += x

    @property
    def statistic(self) -> float:
        """log of the mean of exp(g) over the bets: what is held against log(N)."""
        if not self.logs:
            return 0.0
        highest = max(self.logs)
        return highest + math.log(sum(math.exp(log - highest) for log in self.logs) / len(self.logs))

    @property
    def observed(self) -> float | None:
        """The mean of x since the guard last had no doubt."""
        return self.run_total / self.run_samples if self.run_samples else None

    def blame(self, limit: float) -> float:
        """The evidence that the control breaks a cap on a share less often than what is guarded, as a log of a
        likelihood ratio; below 0 that it breaks it as often."""
        share = min(self.observed or 0.0, _MOST_BROKEN)
        if share <= limit:
            return 0.0
        logs = [self._likelihood(less) - self._likelihood(share) for less in (limit, max(limit, share / 2.0))]
        highest = max(logs)
        return highest + math.log(sum(math.exp(log - highest) for log in logs) / len(logs))

    def _likelihood(self, share: float) -> float:
        """log of the probability of what the control did, up to a constant, where it breaks the cap with `share`."""
        kept = self.control - self.control_total
        return self.control_total * math.log(max(share, 1e-9)) + kept * math.log(1.0 - share)
