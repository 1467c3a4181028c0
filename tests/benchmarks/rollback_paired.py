"""Speculation against its control in simulated traffic.

Goals: at most 1 class of 100 is rolled back in 100,000 requests without a loss, whatever the load does, and for its
cost in 20,000 requests that cost as much as the control's; with 10 % of the requests as control, a loss of 10 % is
found within 1,500 speculative answers and one of 40 % within 200 (medians). Beside it, on the same requests: the guard
of a limit on times that does not look at the control.

Both arms share the load of a class. It goes up and down four times over: a random walk with memory, a day's swing,
bursts, and a slow server that both arms meet alike. Lengths are log-normal with a standard deviation of 0.5, as within
a length bin, and so is the noise of each answer, of 0.25. The comparison and the guard are the operator's own code. The
same seed gives the same figures.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from slipstream_core.manifest.rollout import Analysis, Thresholds
from slipstream_operator.rollout.analysis.guard import Guard
from slipstream_operator.rollout.analysis.metrics import COMPARED, Metric, rules_of
from slipstream_operator.rollout.analysis.paired import PairedTimes

from tests.benchmarks.harness import Option, Report, benchmark
from tests.benchmarks.rollback import finite

Floats = NDArray[np.float64]

ALARM_AT = math.log(Analysis().false_alarm_requests)
MIN_SAMPLES = Analysis().min_samples
LIMIT_S = 4.0
BLAME_AT = COMPARED[Metric.P95].blame_at
RULE = rules_of(Thresholds(p95_seconds=LIMIT_S), min_samples=MIN_SAMPLES)[0]
ERRORS = rules_of(Thresholds(error_rate=0.05), min_samples=MIN_SAMPLES)[0]
MARGIN = 0.02
COST_INCREASE = 0.05


class Size(NamedTuple):
    """Of the simulated traffic."""

    classes: int
    share: float

    @property
    def is_small(self) -> bool:
        return self.share < 1.0

    def scaled(self, requests: int) -> int:
        return int(requests * self.share)


class Trace(NamedTuple):
    """Requests of a class: seconds, output tokens, and who is control."""

    seconds: Floats
    tokens: Floats
    control: NDArray[np.bool_]


def load_of(random: np.random.Generator, requests: int) -> Floats:
    """How many times longer an answer takes than on idle servers: 1 to 4 for most requests."""
    walk = lfilter([0.02], [1.0, -0.999], random.standard_normal(requests))
    day = 0.35 * np.sin(np.arange(requests) * 2.0 * math.pi * random.uniform(1.0, 20.0) / requests)
    load = np.exp(np.clip(walk + day + 0.5, 0.0, math.log(4.0)))
    for begin in random.integers(0, requests, size=max(requests // 5_000, 1)):
        load[begin : begin + random.integers(50, 600)] *= random.uniform(1.0, 4.0)
    begin = int(random.integers(0, requests))
    slow = random.random(requests) < 0.25
    slow[:begin], slow[begin + requests // 5 :] = False, False
    return np.asarray(np.where(slow, 3.0 * load, load))


def trace(
    random: np.random.Generator, *, loss: float, share: float, requests: int, noise: float = 0.25, begin: int = 0
) -> Trace:
    """`share` of the requests are control; from `begin` on speculative ones take `loss` longer."""
    length = np.exp(0.5 * random.standard_normal(requests))
    seconds = length * load_of(random, requests) * np.exp(noise * random.standard_normal(requests))
    control = random.random(requests) < share
    slower = ~control & (np.arange(requests) >= begin)
    return Trace(np.where(slower, seconds * (1.0 + loss), seconds), np.ceil(200.0 * length), control)


def paired(found: Trace) -> int:
    """The number of the request with which the comparison finds a loss; 0: it finds none."""
    times, blocks = PairedTimes(), 0
    rows = zip(found.seconds.tolist(), found.tokens.tolist(), found.control.tolist(), strict=True)
    for index, (seconds, tokens, control) in enumerate(rows, start=1):
        times.add(seconds, int(tokens), control=control)
        if times.began.n != blocks:
            blocks = times.began.n
            if times.found_loss(ALARM_AT, margin=MARGIN) is not None:
                return index
    return 0


def dearer(found: Trace) -> int:
    """The number of the request with which the comparison finds that costs, which are `seconds` here, are more than
    `COST_INCREASE` above the control's; 0: it finds none."""
    return next((index for index, costs in _compared_costs(found) if costs.found_loss(ALARM_AT, margin=MARGIN)), 0)


def costs_of(found: Trace) -> PairedTimes:
    """The operator's comparison of the costs of `found`."""
    return [costs for _, costs in _compared_costs(found)][-1]


def _compared_costs(found: Trace) -> Iterator[tuple[int, PairedTimes]]:
    """The comparison after each request."""
    costs = PairedTimes()
    rows = zip(found.seconds.tolist(), found.tokens.tolist(), found.control.tolist(), strict=True)
    for index, (cost, tokens, control) in enumerate(rows, start=1):
        costs.add(cost if control else cost / (1.0 + COST_INCREASE), int(tokens), control=control)
        yield index, costs


def limited(found: Trace, *, compared: bool) -> int:
    """The number of the request with which the guard of a p95 takes the class back; 0: it does not."""
    guard = Guard()
    for index, (broken, control) in enumerate(
        zip((found.seconds > LIMIT_S).tolist(), found.control.tolist(), strict=True), start=1
    ):
        if control:
            guard.compare(float(broken))
        else:
            guard.add(
                float(broken),
                RULE.excess(float(broken)),
                RULE.bets,
                alarm_at=ALARM_AT,
                min_samples=RULE.min_samples,
                latched=not compared,
            )
        if guard.alarm and (not compared or guard.blame(RULE.limit) >= BLAME_AT):
            return index
    return 0


def alone(found: Trace) -> int:
    return limited(found, compared=False)


def beside_control(found: Trace) -> int:
    return limited(found, compared=True)


def report_false(random: np.random.Generator, size: Size, report: Report) -> None:
    """Classes that are taken back though nothing is wrong with speculation."""
    many = size.scaled(100_000)
    traces = [trace(random, loss=0.0, share=0.1, requests=many) for _ in range(size.classes)]
    noisy = [trace(random, loss=0.0, share=0.1, requests=many, noise=0.6) for _ in range(size.classes)]
    for name, rule, bound in (
        ("paired comparison", paired, 0.01),
        ("p95 limit, control is asked", beside_control, 0.01),
        ("p95 limit alone", alone, 1.0),
    ):
        share, noisier = (sum(rule(one) > 0 for one in some) / size.classes for some in (traces, noisy))
        report.row(f"no loss, {name}", rolled_back=share, with_noise_0_6=noisier)
        report.require(share <= bound, f"no loss, {name}: {share:.1%} of the classes are rolled back")


def answers_until(rule: Callable[[Trace], int], found: Trace, begin: int) -> float:
    """Speculative answers from `begin` until `rule` finds a loss; infinite where it finds none, or did before."""
    at = rule(found)
    return float((~found.control[begin:at]).sum()) if at > begin else math.inf


def waits(prefix: str, answers: Sequence[float]) -> dict[str, float | None]:
    """Median and 90th percentile; None: not found."""
    middle, late = np.quantile(answers, [0.5, 0.9], method="lower")
    return {f"{prefix}median": finite(middle), f"{prefix}p90": finite(late)}


# Loss, share of the control, request at which it begins, requests after it, goal for the median.
LOSSES = (
    (0.1, 0.1, 0, 12_000, 1_500.0),
    (0.4, 0.1, 0, 3_000, 200.0),
    (0.4, 0.1, 20_000, 3_000, math.inf),
    (0.1, 0.1, 20_000, 12_000, math.inf),
    (0.4, 0.02, 0, 12_000, math.inf),
    (0.4, 0.5, 0, 2_000, math.inf),
    (0.4, 0.95, 0, 12_000, math.inf),
)
MORE_LOSSES = (
    (0.36, 0.1, 0, 3_000, 300.0),
    (0.36, 0.1, 20_000, 3_000, math.inf),
    (0.36, 0.02, 0, 12_000, math.inf),
    (1.0, 0.1, 0, 3_000, math.inf),
    (1.0, 0.1, 20_000, 3_000, math.inf),
    (1.0, 0.02, 0, 12_000, math.inf),
)


def report_losses(
    random: np.random.Generator, size: Size, report: Report, cases: Sequence[tuple[float, float, int, int, float]]
) -> None:
    """How soon losses are found."""
    for loss, share, begin, requests, goal in cases:
        start, end = size.scaled(begin), size.scaled(begin + requests)
        traces = [trace(random, loss=loss, share=share, requests=end, begin=start) for _ in range(size.classes)]
        found = [answers_until(paired, one, start) for one in traces]
        report.row(f"loss {loss:.0%}, control {share:.0%}, after {begin:,}", **waits("", found))
        report.require(size.is_small or np.median(found) <= goal, f"a loss of {loss:.0%} is found too late")


def report_limits(random: np.random.Generator, size: Size, report: Report) -> None:
    """How soon speculation alone breaks its limit on times, where 4 % of the control's answers do."""
    requests = size.scaled(20_000)
    for broken in (0.1, 0.2, 0.5, 1.0):
        columns: dict[str, float | None] = {}
        for name, share, rule in (
            ("control_10_", 0.1, beside_control),
            ("control_2_", 0.02, beside_control),
            ("alone_", 0.1, alone),
        ):
            found = []
            for _ in range(size.classes):
                control = random.random(requests) < share
                late = random.random(requests) < np.where(control, 0.04, broken)
                seconds = np.where(late, 2.0 * LIMIT_S, 0.5 * LIMIT_S)
                found.append(answers_until(rule, Trace(seconds, np.full(requests, 200.0), control), 0))
            columns |= waits(name, found)
        report.row(f"{broken:.0%} above the p95", **columns)


def report_costs(random: np.random.Generator, size: Size, report: Report) -> None:
    """Classes whose cost is within `COST_INCREASE`, and how soon others are found."""
    for increase, most in ((0.0, 0.01), (COST_INCREASE, 1.0)):
        some = [trace(random, loss=increase, share=0.1, requests=size.scaled(20_000)) for _ in range(size.classes)]
        share = sum(dearer(one) > 0 for one in some) / size.classes
        report.row(f"cost {increase:+.0%}, 5 % allowed", rolled_back=share)
        report.require(share <= most, f"a cost of {increase:+.0%} rolls {share:.1%} of the classes back")
    for increase, control, begin in ((0.48, 0.1, 0), (0.48, 0.02, 0), (0.3, 0.1, 0), (0.3, 0.1, 10_000)):
        start, end = size.scaled(begin), size.scaled(begin + 12_000)
        some = [trace(random, loss=increase, share=control, requests=end, begin=start) for _ in range(size.classes)]
        columns = waits("", [answers_until(dearer, one, start) for one in some])
        report.row(f"cost {increase:+.0%}, control {control:.0%}, after {begin:,}", **columns)


def failed_until(random: np.random.Generator, *, failing: float, share: float, requests: int = 20_000) -> float:
    """Speculative requests until a class is taken back of which the share `failing` fails after 2,000 requests, and 1 %
    before; 1 % of the control's fail. Without a `share` of the control the limit alone decides."""
    guard, compared, begin, seen = Guard(), COMPARED[Metric.ERROR_RATE], 2_000, 0
    draws, held_back = random.random(begin + requests), random.random(begin + requests) < share
    for index, (draw, control) in enumerate(zip(draws.tolist(), held_back.tolist(), strict=True)):
        if control:
            guard.compare(float(draw < 0.01))
            continue
        x = float(draw < (failing if index >= begin else 0.01))
        excess = ERRORS.excess(x)
        guard.add(x, excess, ERRORS.bets, alarm_at=ALARM_AT, min_samples=ERRORS.min_samples, latched=not share)
        seen += index >= begin
        alone = not guard.control_total and guard.run_total >= (compared.alone_after or 0)
        if guard.alarm and (alone or guard.blame(ERRORS.limit) >= compared.blame_at):
            return float(seen)
    return math.inf


def report_errors(random: np.random.Generator, size: Size, report: Report) -> None:
    """How soon errors of speculation alone take a class back, by the guard; half of the requests need no guard."""
    for failing in (0.1, 0.2, 0.4):
        columns: dict[str, float | None] = {}
        for name, share in (("control_10_", 0.1), ("control_2_", 0.02), ("alone_", 0.0)):
            found = [failed_until(random, failing=failing, share=share) for _ in range(size.classes)]
            columns |= waits(name, found)
        report.row(f"{failing:.0%} fail, 5 % allowed", **columns)


def measure(args: argparse.Namespace, report: Report) -> None:
    random, size = np.random.default_rng(args.seed), Size(args.classes, args.share)
    report_losses(random, size, report, LOSSES)
    report_false(random, size, report)
    report_costs(np.random.default_rng([args.seed, 1]), size, report)
    report_limits(random, size, report)
    report_errors(np.random.default_rng(args.seed), size, report)
    report_losses(np.random.default_rng([args.seed, 2]), size, report, MORE_LOSSES)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        seed=Option(1, 1, "of all random numbers"),
        classes=Option(100, 2, "simulated classes"),
        share=Option(1.0, 0.02, "of the requests of each class: below 1 for a quick look"),
    )
