"""The share of the control that follows the evidence.

Goals: at most 1 class of 100 is rolled back in 100,000 requests without a loss; a loss of 100 % is found within 60
speculative answers and one of 36 % within 300, also if they begin later, and one of 10 % within 1,500 (medians) though
`holdBackShare` is 0.02; a class with a gain of 20 % has 3.5 % of its requests in the control.

The load, lengths and noise are those of `rollback_paired`. Every class is promoted, with share 1, so that the hold-back
is its only control. The times are those of 20 requests/s, where an answer takes a second. An outcome is in Redis after
5 more requests, and the operator reads every 20 requests. It looks at the facts every 40, and at once where they show a
loss. Requests obey an alarm 25 answers after its cause, and the operator's share 20 answers after its decision, so that
blocks have requests of both shares. The alarm is the gateway's own code; the comparison, the search for a loss and the
choice of the share are the operator's.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
from slipstream_core.manifest.speculation_policy import SpeculationPolicySpec
from slipstream_core.manifest.status import Phase
from slipstream_core.observation import Observation, Subject
from slipstream_core.types import Arm, Reason
from slipstream_gateway.decide.estimate.slowdown import SlowdownAlarm
from slipstream_gateway.decide.route.steps import ALARM_SHARE
from slipstream_operator.rollout.analysis.facts import ClassMemory
from slipstream_operator.rollout.analysis.ledger import terms_of
from slipstream_operator.rollout.analysis.record import ClassRecord
from slipstream_operator.rollout.hold_back import hold_back_share
from slipstream_operator.rollout.transitions import ClassState, Situation
from slipstream_operator.status.conditions import rfc3339

from tests.benchmarks.harness import Option, Report, benchmark
from tests.benchmarks.rollback_paired import Floats, Size, load_of, waits

NAME = "code/long"
SUBJECT = Subject(pair="acme", cold_class=NAME, temperature=0)
RATE = 20.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SINCE = datetime(2025, 1, 1, tzinfo=UTC)


class Pace(NamedTuple):
    """Numbers of requests: until an outcome is in Redis, between two reads of it, between two looks at the facts, and
    in flight."""

    delivery: int
    read: int
    look: int
    flight: int

    @classmethod
    def of(cls, rate: float) -> Pace:
        """That of `rate` requests per second."""
        return cls(*(max(round(seconds * rate), 1) for seconds in (0.25, 1.0, 2.0, 1.0)))


class Traffic(NamedTuple):
    """Requests of a class: seconds if they decode plainly, how much longer with speculation, output tokens, and the
    draws that choose the control."""

    seconds: Floats
    change: Floats
    tokens: Floats
    draws: Floats


class Judged(NamedTuple):
    """`at` is the number of the request at which a loss was found, 0 for none; `control` says which were control."""

    at: int
    control: list[bool]


def traffic(
    random: np.random.Generator, *, loss: float, requests: int, before: float = 0.0, begin: int = 0, noise: float = 0.25
) -> Traffic:
    """Speculative answers take `before` longer up to the request `begin`, and `loss` longer after it."""
    length = np.exp(0.5 * random.standard_normal(requests))
    seconds = length * load_of(random, requests) * np.exp(noise * random.standard_normal(requests))
    change = np.where(np.arange(requests) < begin, before, loss)
    return Traffic(seconds, change, np.ceil(200.0 * length), random.random(requests))


PACE = Pace.of(RATE)


class Gateway:
    """The draws of the control: by the operator's last share, or that of an alarm."""

    def __init__(self, spec: SpeculationPolicySpec, pace: Pace) -> None:
        self._alarm, self._usual, self._least = SlowdownAlarm(), spec.hold_back_share, spec.hold_back_share
        most = spec.max_hold_back_share
        self._most = ALARM_SHARE if most is None else most
        self._alarms: deque[bool | None] = deque([None] * (pace.flight + pace.delivery))
        self._shares: deque[float] = deque([spec.hold_back_share] * pace.flight)

    def draw(self, draw: float, share: float) -> tuple[bool, bool]:
        """Whether a request is control, and whether an alarm has an effect. `share` is the operator's."""
        self._alarms.append(self._alarm.is_on)
        self._shares.append(share)
        alarm, usual = self._alarms.popleft(), self._shares.popleft()
        alarmed = (alarm or (alarm is None and usual > self._least)) and self._most > usual
        return draw < (self._most if alarmed else usual), bool(alarmed)

    def learn(self, seen: Observation) -> None:
        self._alarm.learn(seen)


def judge(found: Traffic, spec: SpeculationPolicySpec, pace: Pace = PACE) -> Judged:
    """Follows a promoted class until a loss is found, or its requests end."""
    record, control, gateway = ClassRecord(window_seconds=600), list[bool](), Gateway(spec, pace)
    terms = terms_of(spec, NAME, retried=False)
    situation = Situation(spec=spec, now=NOW, held=None, released=SINCE, connected=True)
    state = ClassState(name=NAME, phase=Phase.PROMOTED, share=1.0, step=3, since=SINCE)
    share = hold_back_share(state, None, situation, before=None) or 0.0
    record.stand(_memory(share, since=SINCE))
    rows = zip(*(column.tolist() for column in found), strict=True)
    for index, (plain_s, change, tokens, draw) in enumerate(rows):
        is_control, alarmed = gateway.draw(draw, share)
        control.append(is_control)
        seconds = plain_s if is_control else plain_s * (1.0 + change)
        record.times.add(seconds, int(tokens), control=is_control, alarmed=alarmed)
        gateway.learn(seen_of(seconds, int(tokens), is_control, alarmed))
        if (
            index % pace.read == pace.read - 1
            and record.times.found_loss(terms.alarm_at, margin=terms.margin) is not None
        ):
            end = min(index + 1 + pace.delivery, len(found.draws))
            return Judged(end, control + [gateway.draw(one, share)[0] for one in found.draws[index + 1 : end]])
        if index % pace.look == pace.look - 1:
            facts = record.facts(terms, NOW.timestamp())
            latest, share = share, hold_back_share(state, facts, situation, before=share) or 0.0
            if share != latest:
                record.stand(_memory(share, since=NOW + timedelta(seconds=index)))
    return Judged(0, control)


def seen_of(seconds: float, tokens: int, control: bool, alarmed: bool) -> Observation:
    return Observation(
        subject=SUBJECT,
        request_class=NAME,
        arm=Arm.CONTROL if control else Arm.SPECULATIVE,
        reason=Reason.HOLD_BACK if control else Reason.SPECULATION_PAYS,
        draft_length=0,
        pool="",
        status="ok",
        prompt_tokens=1,
        output_tokens=tokens,
        drafted=0,
        accepted=0,
        rejections=0,
        steps=0,
        ttft_s=None,
        e2e_s=seconds,
        load=1.0,
        batch_draft_length=0.0,
        price_per_gpu_hour=None,
        time_s=1.0,
        alarmed=alarmed,
    )


def _memory(share: float, *, since: datetime) -> ClassMemory:
    return ClassMemory(
        phase=Phase.PROMOTED,
        share=1.0,
        step=3,
        since="2025-01-01T00:00:00Z",
        retries=0,
        retry_at=None,
        spec_hash="",
        retry_token=None,
        hold_back_share=share,
        hold_back_since=rfc3339(since),
    )


FIXED = SpeculationPolicySpec(pair="acme", max_hold_back_share=0.02)
RAISED = SpeculationPolicySpec(pair="acme", max_hold_back_share=0.1)
DEFAULT = SpeculationPolicySpec(pair="acme")
SPECS = {"fixed_": FIXED, "raised_": RAISED, "default_": DEFAULT}


def report_false(random: np.random.Generator, size: Size, report: Report) -> None:
    """Classes that are taken back though nothing is slower, and the size of their control."""
    for name, change, classes, largest in (
        ("no change", 0.0, size.classes, 1.0),
        ("a gain of 20 %", -0.2, -(-size.classes // 5), 0.035),
    ):
        requests = size.scaled(100_000)
        judged = [judge(traffic(random, loss=change, requests=requests), DEFAULT) for _ in range(classes)]
        back = sum(one.at > 0 for one in judged) / classes
        control = float(np.mean([np.mean(one.control) for one in judged]))
        report.row(f"{name}: {classes} classes", rolled_back=back, control=control)
        report.require(back <= 0.01, f"{name}: {back:.1%} of the classes are rolled back")
        report.require(size.is_small or control <= largest, f"{name}: {control:.1%} of the requests are control")


def answers_until(found: Traffic, spec: SpeculationPolicySpec, begin: int) -> float:
    """Speculative answers from `begin` until a loss is found; infinite where none is, or one was before."""
    judged = judge(found, spec)
    return float(judged.control[begin : judged.at].count(False)) if judged.at > begin else math.inf


# Loss, change before it, request at which it begins, requests after it, goal for the median.
LOSSES = (
    (0.1, 0.0, 0, 20_000, 1_500.0),
    (0.4, 0.0, 0, 4_000, math.inf),
    (0.1, -0.2, 20_000, 30_000, math.inf),
    (0.4, -0.2, 20_000, 8_000, math.inf),
)
MORE_LOSSES = (
    (0.36, 0.0, 0, 4_000, 300.0),
    (0.36, -0.2, 20_000, 8_000, 300.0),
    (1.0, 0.0, 0, 4_000, 60.0),
    (1.0, -0.2, 20_000, 8_000, 60.0),
)


def report_losses(
    random: np.random.Generator, size: Size, report: Report, cases: Sequence[tuple[float, float, int, int, float]]
) -> None:
    """How soon losses are found, with `holdBackShare` 0.02 and `maxHoldBackShare` 0.02, 0.1 and none."""
    for loss, before, begin, requests, goal in cases:
        start, end = size.scaled(begin), size.scaled(begin + requests)
        some = [traffic(random, loss=loss, before=before, begin=start, requests=end) for _ in range(size.classes)]
        found = {name: [answers_until(one, spec, start) for one in some] for name, spec in SPECS.items()}
        columns = {name: cell for prefix, answers in found.items() for name, cell in waits(prefix, answers).items()}
        report.row(f"loss {loss:.0%}, after {begin:,} with {before:+.0%}", **columns)
        late = np.median(found["default_"]) > goal
        report.require(size.is_small or not late, f"a loss of {loss:.0%} is found too late")


def report_rates(random: np.random.Generator, size: Size, report: Report) -> None:
    """The answers and the seconds until a loss is found that begins after 5,000 requests with a gain of 20 %."""
    begin = size.scaled(5_000)
    for loss, requests in ((0.1, 30_000), (0.36, 8_000), (1.0, 4_000)):
        end = begin + size.scaled(requests)
        some = [traffic(random, loss=loss, before=-0.2, begin=begin, requests=end) for _ in range(size.classes)]
        for rate in (2.0, 20.0, 200.0):
            judged = [judge(one, DEFAULT, Pace.of(rate)) for one in some]
            late = [one.control[begin : one.at] if one.at > begin else None for one in judged]
            columns = waits("answers_", [math.inf if one is None else float(one.count(False)) for one in late])
            columns |= waits("seconds_", [math.inf if one is None else len(one) / rate for one in late])
            report.row(f"loss {loss:.0%}, {rate:g} requests/s", **columns)


def measure(args: argparse.Namespace, report: Report) -> None:
    random, size = np.random.default_rng(args.seed), Size(args.classes, args.share)
    report_losses(random, size, report, LOSSES)
    report_false(random, size, report)
    report_losses(np.random.default_rng([args.seed, 1]), size, report, MORE_LOSSES)
    report_rates(np.random.default_rng([args.seed, 2]), size, report)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        seed=Option(1, 1, "of all random numbers"),
        classes=Option(100, 2, "simulated classes"),
        share=Option(1.0, 0.02, "of the requests of each class: below 1 for a quick look"),
    )
