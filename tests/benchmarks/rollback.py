"""False rollbacks, detection and promotion in simulated traffic.

Goals: at most 1 % of the classes rolled back in 1,000,000 healthy requests at 1.05 × the threshold, for every metric,
and none by errors that stay well below their limit; a drop of the acceptance rate from 0.72 to 0.55 below a floor of
0.65 found in 150 requests (median). Requests are overdispersed: each has an acceptance rate of its own. The formulas
are the operator's, over many classes at once; tests compare both. The same seed gives the same figures.
"""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from slipstream_core.manifest.rollout import Analysis, Thresholds
from slipstream_operator.rollout.analysis.metrics import MIN_ERROR_REQUESTS, MIN_FAILURES, Metric, Rule, rules_of
from slipstream_operator.rollout.analysis.paired import PairedTimes
from slipstream_operator.rollout.analysis.verdicts import MOST_FAIL

from tests.benchmarks.harness import Option, Report, benchmark

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FLOOR = 0.65
P95_S = 2.0
PARITY_LOSS = 0.02
ERROR_RATE = 0.05
ALARM_AT = math.log(Analysis().false_alarm_requests)
MIN_SAMPLES = Analysis().min_samples
# A request's acceptance rate is Beta-distributed with this many "prior tokens": a standard deviation of about 0.16.
CONCENTRATION = 8.0
SIGMA = 0.5


class Size(NamedTuple):
    """Of the simulated traffic."""

    classes: int
    requests: int


def rule_for(metric: Metric) -> Rule:
    """The operator's rule of a metric with this benchmark's thresholds."""
    thresholds = Thresholds(
        acceptance_floor=FLOOR,
        p95_seconds=P95_S,
        ttft_p95_seconds=P95_S,
        parity_loss=PARITY_LOSS,
        error_rate=ERROR_RATE,
    )
    return next(rule for rule in rules_of(thresholds, min_samples=MIN_SAMPLES) if rule.metric is metric)


def alarms(x: Floats, rule: Rule, *, alarm_at: float = ALARM_AT, min_samples: int | None = None) -> Ints:
    """`Guard`, over many classes: the number of the request at which each of `x` (classes × requests) has its alarm,
    0 for none. NaN: the guard does not see that request. `min_samples` in place of the rule's."""
    fewest = rule.min_samples if min_samples is None else min_samples
    excess = rule.limit - x if rule.floor else x - rule.limit
    logs = np.zeros((len(rule.bets), len(x)))
    seen, found = np.zeros(len(x), dtype=np.int64), np.zeros(len(x), dtype=np.int64)
    bets = np.array(rule.bets)[:, None]
    for index in range(x.shape[1]):
        step = excess[:, index]
        live = ~np.isnan(step)
        seen += live
        logs = np.where(live, np.maximum(logs, 0.0) + np.log1p(bets * np.nan_to_num(step)), logs)
        hit = (logs.max(axis=0) >= alarm_at) & (found == 0) & (seen >= fewest)
        if hit.any():
            mean = np.logaddexp.reduce(logs, axis=0) - math.log(len(rule.bets))
            found[hit & (mean >= alarm_at)] = index + 1
    return found


def acceptances(random: np.random.Generator, mean: float, classes: int, requests: int) -> tuple[Ints, Ints]:
    """Accepted and drafted tokens of each request."""
    shape = (classes, requests)
    rates = random.beta(mean * CONCENTRATION, (1.0 - mean) * CONCENTRATION, size=shape)
    drafted = random.integers(10, 200, size=shape)
    return random.binomial(drafted, rates), drafted


def latencies(random: np.random.Generator, p95_s: float, classes: int, requests: int) -> Floats:
    """Log-normal times with that p95."""
    return np.asarray(p95_s * np.exp(SIGMA * (random.standard_normal((classes, requests)) - 1.6448536)))


def healthy(random: np.random.Generator, metric: Metric, margin: float, *, classes: int, requests: int) -> Floats:
    """x of traffic that keeps to the metric's threshold by `margin`, e.g. 1.05; 1 is exactly at it."""
    if metric is Metric.ACCEPTANCE:
        accepted, drafted = acceptances(random, min(FLOOR * margin, 0.99), classes, requests)
        return np.asarray(accepted / drafted)
    if metric is Metric.PARITY:
        return (random.random((classes, requests)) < PARITY_LOSS / margin).astype(float)
    return (latencies(random, P95_S / margin, classes, requests) > P95_S).astype(float)


def promotions(random: np.random.Generator, *, gain: float, margin: float, share: float, classes: int) -> list[int]:
    """The answers of both arms until the gain counts as shown in each class, of 8,000 at most; 0: never. The operator's
    own code, asked after every 20th answer."""
    found = []
    for _ in range(classes):
        seen, at = PairedTimes(), 0
        times = random.lognormal(sigma=SIGMA, size=8_000)
        fast = random.random(8_000) < share
        for index, seconds in enumerate(times.tolist(), start=1):
            mine = bool(fast[index - 1])
            seen.add(seconds * (1.0 - gain) if mine else seconds, 200, control=not mine)
            if index % 20 or min(seen.step_speculative, seen.step_control) < MIN_SAMPLES:
                continue
            bound = seen.upper_change(confidence=0.95, tuned_for=MIN_SAMPLES)
            if bound is not None and bound < -margin:
                at = index
                break
        found.append(at)
    return found


def report_healthy(random: np.random.Generator, size: Size, report: Report) -> None:
    """Alarms of healthy classes."""
    for metric in (Metric.ACCEPTANCE, Metric.P95, Metric.TTFT, Metric.PARITY):
        rates = []
        for margin in (1.05, 1.0):
            x = healthy(random, metric, margin, classes=size.classes, requests=size.requests)
            rates.append(float((alarms(x, rule_for(metric)) > 0).mean()))
        report.row(f"{metric.value}: classes rolled back", at_1_05_threshold=rates[0], at_threshold=rates[1])
        report.require(rates[0] <= 0.01, f"{metric.value}: {rates[0]:.1%} of healthy classes are rolled back")


def delays(found: Ints, begin: int) -> tuple[float, float, float]:
    """Median and 90th percentile of the requests after `begin`, of those without an alarm before; the share found."""
    late = found[(found == 0) | (found > begin)]
    waits = np.where(late == 0, np.inf, late - begin)
    return (
        float(np.quantile(waits, 0.5, method="lower")),
        float(np.quantile(waits, 0.9, method="lower")),
        float(np.isfinite(waits).mean()),
    )


def report_delays(name: str, found: Ints, begin: int, report: Report) -> None:
    """The requests until the alarm; None: there was none."""
    median, late, share = delays(found, begin)
    report.row(f"{name}: requests", median=finite(median), p90=finite(late), found=share)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def report_detection(random: np.random.Generator, size: Size, report: Report) -> None:
    """Delays of detection after healthy requests."""
    begin, after, classes = size.requests, 3_000, 2 * size.classes

    def accepted(before: float, mean: float) -> tuple[Ints, Ints]:
        parts = acceptances(random, before, classes, begin), acceptances(random, mean, classes, after)
        good, drafted = (np.concatenate(both, axis=1) for both in zip(*parts, strict=True))
        return good, drafted

    def rate(before: float, share: float) -> Floats:
        parts = random.random((classes, begin)) < before, random.random((classes, after)) < share
        return np.concatenate(parts, axis=1).astype(float)

    good, drafted = accepted(0.72, 0.55)
    found = alarms(good / drafted, rule_for(Metric.ACCEPTANCE))
    report_delays("acceptance 0.72 -> 0.55", found, begin, report)
    report.require(delays(found, begin)[0] <= 150.0, "a drop of the acceptance rate is found too late")
    for mean in (0.60, 0.45):
        good, drafted = accepted(0.72, mean)
        found = alarms(good / drafted, rule_for(Metric.ACCEPTANCE))
        report_delays(f"acceptance 0.72 -> {mean:.2f}", found, begin, report)
    for share in (0.10, 0.20):
        found = alarms(rate(0.04, share), rule_for(Metric.P95))
        report_delays(f"4 % -> {share:.0%} longer than the p95", found, begin, report)
    report_delays("parity 1 % -> 10 % differ", alarms(rate(0.01, 0.1), rule_for(Metric.PARITY)), begin, report)


def most_fail(x: Floats) -> NDArray[np.bool_]:
    """Of each request, whether the hard trip fires with it, where a window holds 100 requests."""
    sums = np.cumsum(np.pad(x, ((0, 0), (100, 0))), axis=1)
    failures = sums[:, 100:] - sums[:, :-100]
    requests = np.minimum(np.arange(1, x.shape[1] + 1), 100)
    return (requests >= MIN_ERROR_REQUESTS) & (failures >= np.maximum(MIN_FAILURES, MOST_FAIL * requests))


def report_errors(random: np.random.Generator, size: Size, report: Report) -> None:
    """Errors of servers that are well and that are not."""
    for rate, allowed in ((0.01, 0.0), (0.02, 0.0), (ERROR_RATE / 1.05, 0.01), (ERROR_RATE, 1.0)):
        x = (random.random((size.classes, size.requests)) < rate).astype(float)
        found = float((alarms(x, rule_for(Metric.ERROR_RATE)) > 0).mean())
        most = float(most_fail(x).any(axis=1).mean())
        report.row(f"errors {rate:.1%} of 5 %: rolled back", guard=found, most_of_100=most)
        report.require(found + most <= allowed, f"errors of {rate:.1%} roll {found + most:.1%} of the classes back")
    begin, after = 2_000, 3_000
    for rate in (0.1, 0.2, 0.5, 1.0):
        shares = np.where(np.arange(begin + after) < begin, 0.01, rate)
        x = (random.random((size.classes, begin + after)) < shares).astype(float)
        report_delays(f"errors 1 % -> {rate:.0%}", alarms(x, rule_for(Metric.ERROR_RATE)), begin, report)
    fresh = alarms(np.ones((1, 100)), rule_for(Metric.ERROR_RATE))
    report_delays("all of a class that begins fail", fresh, 0, report)


def report_promotion(random: np.random.Generator, size: Size, report: Report) -> None:
    """How often a gain that is not there is shown, and how soon one that is."""
    for share in (0.05, 0.5):
        wrong = promotions(random, gain=0.02, margin=0.02, share=share, classes=size.classes)
        right = promotions(random, gain=0.20, margin=0.02, share=share, classes=size.classes)
        rate, shown = sum(at > 0 for at in wrong) / len(wrong), sorted(at for at in right if at)
        report.row(
            f"speculative share {share:.0%}, 8,000 answers: gain shown",
            exactly_the_margin=rate,
            gain_20_percent=len(shown) / len(right),
            median_answers=shown[len(shown) // 2] if shown else None,
        )
        report.require(rate <= 0.05, f"a gain that is not there is shown in {rate:.1%} of the classes")


def measure(args: argparse.Namespace, report: Report) -> None:
    # Those of docs/rollback-simulations.md. What one report draws does not change the others.
    randoms = [np.random.default_rng([args.seed, index]) for index in (0, 1, 2, 4)]
    size = Size(args.classes, args.requests)
    reports = (report_healthy, report_detection, report_promotion, report_errors)
    for one, random in zip(reports, randoms, strict=True):
        one(random, size, report)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        seed=Option(1, 1, "of all random numbers"),
        classes=Option(100, 4, "simulated classes"),
        requests=Option(10_000, 500, "of each class"),
    )
