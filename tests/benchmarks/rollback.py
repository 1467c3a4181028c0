"""False rollbacks, detection and promotion in simulated traffic: `python -m tests.benchmarks.rollback`.

Goals: at most 1 % of the classes rolled back in 1,000,000 healthy requests at 1.05 × the threshold, for every metric,
and none by errors that stay well below their limit; a drop of the acceptance rate from 0.72 to 0.55 below a floor of
0.65 found in 150 requests (median). In the same run
the two rules that this one replaces: three bad windows in a row, and a test on tokens. Requests are overdispersed:
each has an acceptance rate of its own. The formulas are the operator's, over many classes at once; that both agree is
tested.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln
from slipstream_core.manifest.rollout import Analysis, Thresholds
from slipstream_operator.rollout.analysis.metrics import MIN_ERROR_REQUESTS, Metric, Rule, rules_of
from slipstream_operator.rollout.analysis.paired import PairedTimes
from slipstream_operator.rollout.analysis.record import MIN_FAILURES, MOST_FAIL

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FLOOR = 0.65
P95_S = 2.0
PARITY_LOSS = 0.02
ERROR_RATE = 0.05
CLASSES, REQUESTS = 100, 10_000
ALARM_AT = math.log(Analysis().false_alarm_requests)
MIN_SAMPLES = Analysis().min_samples
# A request's acceptance rate is Beta-distributed with this many "prior tokens": a standard deviation of about 0.16.
CONCENTRATION = 8.0
SIGMA = 0.5


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


def three_windows(x: Floats, *, window: int = 50) -> Ints:
    """The naive rule: three windows in a row whose mean is below the floor; the request at which it fires, or 0."""
    whole = x[:, : x.shape[1] // window * window]
    bad = whole.reshape(len(x), -1, window).mean(axis=2) < FLOOR
    three = bad[:, :-2] & bad[:, 1:-1] & bad[:, 2:]
    return np.where(three.any(axis=1), (three.argmax(axis=1) + 3) * window, 0)


def token_test(accepted: Ints, drafted: Ints, *, alpha: float = 0.01) -> Ints:
    """The naive test: tokens as independent draws, a beta mixture against the floor, looked at after every request."""
    good = np.cumsum(accepted, axis=1).astype(float)
    bad = np.cumsum(drafted, axis=1) - good
    evidence = betaln(1.0 + good, 1.0 + bad) - good * math.log(FLOOR) - bad * math.log(1.0 - FLOOR)
    fires = (evidence >= -math.log(alpha)) & (good < FLOOR * (good + bad))
    return np.where(fires.any(axis=1), fires.argmax(axis=1) + 1, 0)


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


def report_healthy(random: np.random.Generator) -> bool:
    """Alarms of healthy classes; returns whether the goal is kept for every metric."""
    total = CLASSES * REQUESTS
    print(f"\nhealthy: {CLASSES} classes × {REQUESTS:,} requests = {total:,} per line; rolled back classes")
    print(f"{'metric':<18}{'1.05 × threshold':>18}{'at the threshold':>18}")
    kept = True
    for metric in (Metric.ACCEPTANCE, Metric.P95, Metric.TTFT, Metric.PARITY):
        rates = []
        for margin in (1.05, 1.0):
            x = healthy(random, metric, margin, classes=CLASSES, requests=REQUESTS)
            rates.append(float((alarms(x, rule_for(metric)) > 0).mean()))
        kept &= rates[0] <= 0.01
        print(f"{metric.value:<18}{rates[0]:>18.1%}{rates[1]:>18.1%}")
    return kept


def report_rules(random: np.random.Generator) -> None:
    """The guard beside the two rules that it replaces, on the same requests."""
    print(f"\nacceptance, {CLASSES} classes × {REQUESTS:,} requests: classes in which a rule fires")
    print(f"{'true rate':<12}{'e-CUSUM':>10}{'three windows':>16}{'per token':>12}")
    for mean in (FLOOR * 1.05, 0.66, FLOOR):
        accepted, drafted = acceptances(random, mean, CLASSES, REQUESTS)
        x = accepted / drafted
        rates = [
            float((found > 0).mean())
            for found in (alarms(x, rule_for(Metric.ACCEPTANCE)), three_windows(x), token_test(accepted, drafted))
        ]
        print(f"{mean:<12.4f}{rates[0]:>10.1%}{rates[1]:>16.1%}{rates[2]:>12.1%}")


def delays(found: Ints, begin: int) -> tuple[float, float, float]:
    """Median and 90th percentile of the requests after `begin`, of those without an alarm before; the share found."""
    late = found[(found == 0) | (found > begin)]
    waits = np.where(late == 0, np.inf, late - begin)
    return (
        float(np.quantile(waits, 0.5, method="lower")),
        float(np.quantile(waits, 0.9, method="lower")),
        float(np.isfinite(waits).mean()),
    )


def report_detection(random: np.random.Generator) -> bool:
    """Delays of detection after 10,000 healthy requests; returns whether the goal is kept."""
    begin, after, classes = 10_000, 3_000, 200
    print(f"\ndetection after {begin:,} healthy requests, {classes} classes, requests until the alarm")
    print(f"{'change':<34}{'median':>8}{'90 %':>8}{'found':>8}")
    rows: list[tuple[str, Ints]] = []
    first, second = acceptances(random, 0.72, classes, begin), acceptances(random, 0.55, classes, after)
    accepted, drafted = (np.concatenate(both, axis=1) for both in zip(first, second, strict=True))
    x = accepted / drafted
    rows.append(("acceptance 0.72 -> 0.55", alarms(x, rule_for(Metric.ACCEPTANCE))))
    rows.append(("  three bad windows", three_windows(x)))
    rows.append(("  per token", token_test(accepted, drafted)))
    for wanted, mean in (("acceptance 0.72 -> 0.60", 0.60), ("acceptance 0.72 -> 0.45", 0.45)):
        good, bad = acceptances(random, 0.72, classes, begin), acceptances(random, mean, classes, after)
        x = np.concatenate([good[0] / good[1], bad[0] / bad[1]], axis=1)
        rows.append((wanted, alarms(x, rule_for(Metric.ACCEPTANCE))))
    for share in (0.10, 0.20):
        x = np.concatenate([random.random((classes, begin)) < 0.04, random.random((classes, after)) < share], axis=1)
        rows.append((f"4 % -> {share:.0%} longer than the p95", alarms(x.astype(float), rule_for(Metric.P95))))
    x = np.concatenate([random.random((classes, begin)) < 0.01, random.random((classes, after)) < 0.1], axis=1)
    rows.append(("parity 1 % -> 10 % differ", alarms(x.astype(float), rule_for(Metric.PARITY))))
    print_delays(rows, begin)
    return delays(rows[0][1], begin)[0] <= 150.0


def print_delays(rows: list[tuple[str, Ints]], begin: int) -> None:
    """One line for each change."""
    for name, found in rows:
        median, late, share = delays(found, begin)
        print(f"{name:<34}{median:>8.0f}{late:>8.0f}{share:>8.1%}")


def most_fail(x: Floats) -> NDArray[np.bool_]:
    """Of each request, whether the hard trip fires with it, where a window holds 100 requests."""
    sums = np.cumsum(np.pad(x, ((0, 0), (100, 0))), axis=1)
    failures = sums[:, 100:] - sums[:, :-100]
    requests = np.minimum(np.arange(1, x.shape[1] + 1), 100)
    return (requests >= MIN_ERROR_REQUESTS) & (failures >= np.maximum(MIN_FAILURES, MOST_FAIL * requests))


def report_errors(random: np.random.Generator) -> bool:
    """Errors of servers that are well and that are not; returns whether those that are well all stay."""
    begin, after, kept = 2_000, 3_000, True
    print(f"\nerrors, limit {ERROR_RATE:.0%}: rolled back of {CLASSES} classes × {REQUESTS:,} requests")
    print(f"{'true rate':<12}{'e-CUSUM':>10}{'most of 100':>16}{'3 of 20 to 100':>18}")
    for rate, allowed in ((0.01, 0.0), (0.02, 0.0), (ERROR_RATE / 1.05, 0.01), (ERROR_RATE, 1.0)):
        x = (random.random((CLASSES, REQUESTS)) < rate).astype(float)
        found, most = (alarms(x, rule_for(Metric.ERROR_RATE)) > 0).mean(), most_fail(x).any(axis=1).mean()
        kept &= found + most <= allowed
        print(f"{rate:<12.1%}{found:>10.1%}{most:>16.1%}{three_errors(x).mean():>18.1%}")
    print(f"\nerrors after {begin:,} requests of which 1 % failed, {CLASSES} classes, requests until the alarm")
    rows = []
    for rate in (0.1, 0.2, 0.5, 1.0):
        x = random.random((CLASSES, begin + after)) < np.where(np.arange(begin + after) < begin, 0.01, rate)
        rows.append((f"1 % -> {rate:.0%} fail", alarms(x.astype(float), rule_for(Metric.ERROR_RATE))))
    print_delays(rows, begin)
    fresh = alarms(np.ones((1, 100)), rule_for(Metric.ERROR_RATE))
    print_delays([("all of a class that begins", fresh)], 0)
    return kept


def three_errors(x: Floats) -> NDArray[np.bool_]:
    """The rule that the guard replaces: three failures and more than the limit in a window of 20 to 100 requests."""
    sums = np.cumsum(np.pad(x, ((0, 0), (100, 0))), axis=1)
    failures, requests = sums[:, 100:] - sums[:, :-100], np.minimum(np.arange(1, x.shape[1] + 1), 100)
    return np.asarray(((requests >= 20) & (failures >= 3) & (failures > ERROR_RATE * requests)).any(axis=1))


def report_promotion(random: np.random.Generator) -> bool:
    """How often a gain that is not there is shown, and how soon one that is; returns whether the first is rare."""
    print("\npromotion, margin 2 %, confidence 95 %, 8,000 answers, 100 classes")
    print(f"{'share':<8}{'gain exactly the margin: shown':>32}{'gain 20 %: shown':>18}{'median answers':>16}")
    kept = True
    for share in (0.05, 0.5):
        wrong = promotions(random, gain=0.02, margin=0.02, share=share, classes=100)
        right = promotions(random, gain=0.20, margin=0.02, share=share, classes=100)
        rate = sum(at > 0 for at in wrong) / len(wrong)
        shown = [at for at in right if at]
        kept &= rate <= 0.05
        median = sorted(shown)[len(shown) // 2] if shown else 0
        print(f"{share:<8.0%}{rate:>32.1%}{len(shown) / len(right):>18.1%}{median:>16,}")
    return kept


def main(arguments: list[str]) -> int:
    seed = int(arguments[0]) if arguments else 1
    # A generator for each report: what one draws does not change the others.
    healthy, detection, promotion, rules, errors = (np.random.default_rng([seed, index]) for index in range(5))
    began = time.process_time()
    kept = [report_healthy(healthy), report_detection(detection), report_promotion(promotion)]
    report_rules(rules)
    kept.append(report_errors(errors))
    print(f"\nseed {seed}, {time.process_time() - began:.0f} s of CPU time; goals kept: {all(kept)}")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
