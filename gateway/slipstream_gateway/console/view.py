"""The console's sections, from the gateway's state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from slipstream_core.manifest.kill_switch import KillSwitch

from slipstream_gateway.console import ddsketch
from slipstream_gateway.console.recent_traffic import BUCKET_S, BUCKETS
from slipstream_gateway.console.state import RECENT_BUCKETS, GatewayState, Traffic
from slipstream_gateway.console.switching import OwnKillSwitch
from slipstream_gateway.decide.estimate.evidence import (
    ByKey,
    ClassEvidence,
    Measure,
    TreatmentEffect,
    evidence_by,
    evidence_of,
    groups_of,
    middle,
    treatment_effect,
)
from slipstream_gateway.decide.estimate.moments import Sample
from slipstream_gateway.fleet.snapshot import ServedRoute


def overall(comparisons: Sequence[ByKey], measure: Measure) -> TreatmentEffect:
    """Both arms, with the control reweighted to the class shares of the speculative arm (direct standardisation): the
    mean effect on speculative requests, of each class that of its middle groups of keys. Classes without enough answers
    in an arm are left out."""
    strata: list[tuple[float, Sample, Sample]] = []
    for found in comparisons:
        groups = groups_of(found.values())
        both = [(one, other) for one, other in middle(groups, measure) if one.n >= 2.0 and other.n >= 2.0]
        answers = sum(measure(group.speculative).n for group in groups)
        strata += [(answers / len(both), one, other) for one, other in both]
    if not strata:
        return treatment_effect(Sample(), Sample())
    weights, speculative, control = zip(*strata, strict=True)
    shares = [weight / sum(weights) for weight in weights]
    return treatment_effect(_standardised(speculative, shares), _standardised(control, shares))


def _standardised(samples: Sequence[Sample], shares: Sequence[float]) -> Sample:
    """A sample with the weighted mean, that mean's variance, and a size that matches its degrees of freedom
    (Satterthwaite 1946)."""
    mean = math.fsum(share * sample.mean for sample, share in zip(samples, shares, strict=True))
    parts = [share * share * sample.variance_of_mean for sample, share in zip(samples, shares, strict=True)]
    variance = math.fsum(parts)
    spread = math.fsum(part * part / (sample.n - 1.0) for part, sample in zip(parts, samples, strict=True))
    n = variance * variance / spread + 1.0 if spread > 0.0 else math.fsum(sample.n for sample in samples)
    return Sample(n=n, mean=mean, squares=variance * n * (n - 1.0))


_SHARES = (0.5, 0.9, 0.95, 0.99)
ALL_CLASSES = ""
"""The name for all classes of a pair together."""

Section = Any
"""JSON of one section, written once for every reader of the page."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of one pair, arm and measure, in seconds."""

    pair: str
    arm: str
    measure: str
    count: int
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float


def traffic(state: GatewayState) -> Section:
    """Requests per class and arm, acceptance over time, and the reasons."""
    return {
        "bucket_s": BUCKET_S,
        "buckets": BUCKETS,
        "recent_buckets": RECENT_BUCKETS,
        "end_s": (state.bucket + 1) * BUCKET_S,
        "rows": sorted(state.traffic, key=lambda row: (row.pair, row.request_class, row.arm)),
        "reasons": sorted(state.reasons, key=lambda row: -row.requests),
    }


def speed_up(state: GatewayState) -> Section:
    """Speculative against control per class and, first, over all of them, by pair."""
    by_pair: dict[str, dict[str, ByKey]] = {}
    for row in state.comparisons:
        by_pair.setdefault(row.pair, {})[row.request_class] = row.found
    return [
        {
            "pair": pair,
            "overall": _overall(list(classes.values())),
            "classes": [evidence_of(name, found) for name, found in sorted(classes.items())],
        }
        for pair, classes in by_pair.items()
    ]


def _overall(found: Sequence[ByKey]) -> ClassEvidence:
    every = [one for by_key in found for one in by_key.values()]
    return evidence_by(partial(overall, found), ALL_CLASSES, every)


def latency(state: GatewayState) -> Section:
    """Percentiles per arm over the window."""
    rows = []
    for row in sorted(state.times, key=lambda row: (row.pair, row.arm, row.measure)):
        p50_s, p90_s, p95_s, p99_s = ddsketch.quantiles(row.bins, _SHARES)
        rows.append(
            Percentiles(
                pair=row.pair, arm=row.arm, measure=row.measure, count=sum(row.bins.values()),
                p50_s=p50_s, p90_s=p90_s, p95_s=p95_s, p99_s=p99_s,
            )
        )  # fmt: skip
    return rows


def resilience(state: GatewayState) -> Section:
    """Held, resumed and refused requests."""
    return {
        "entrances": state.entrances,
        "resumed": state.resumed,
        "denied": state.denied,
    }


def pairs(
    routes: Mapping[str, ServedRoute], state: GatewayState, switch: KillSwitch, own: OwnKillSwitch | None
) -> Section:
    """Every served pair, with its kill switches. `own_kill` is this gateway's alone, in a cluster."""
    return [
        {
            "pair": (key := served.route.key),
            "model": model,
            "has_draft": served.route.speculative is not None,
            "ready": served.route.status.ready,
            "status": served.route.status.message,
            "killed": key in state.killed,
            "switched": switch.is_on(served.route),
            "kill": switch.kills.pairs.get(key),
            "own_kill": own.kills.pairs.get(key) if own is not None else None,
            "killed_by_cluster": own is not None and own.is_killed_by_cluster(key),
            "command": switch.command(served.route),
        }
        for model, served in routes.items()
    ]


def rollout(routes: Mapping[str, ServedRoute]) -> Section:
    """The phase of each class, if an operator rolls out; without one nothing is withheld."""
    return [
        {"pair": served.route.key, "request_class": name, **msgspec.to_builtins(standing)}
        for served in routes.values()
        if served.route.standing is not None
        for name, standing in served.route.standing.classes.items()
    ]


def history(routes: Mapping[str, ServedRoute], switch: KillSwitch, own: OwnKillSwitch | None) -> Section:
    """Decisions on whole classes and pairs by the operator and by admins, newest first."""
    decided = [
        {"pair": served.route.key, "by": "operator", **msgspec.to_builtins(decision)}
        for served in routes.values()
        if served.route.standing is not None
        for decision in served.route.standing.decisions
    ]
    turned = [
        {**msgspec.to_builtins(event), "time": event.at, "rule": "Kill" if event.on else "Unkill"}
        for event in (*switch.kills.events, *(own.kills.events if own is not None else ()))
    ]
    return sorted([*decided, *turned], key=lambda entry: str(entry["time"]), reverse=True)[:100]


def own_traffic(state: GatewayState, pair: str) -> list[Traffic]:
    return [row for row in state.traffic if row.pair == pair]
