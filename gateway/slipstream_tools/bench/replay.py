"""Replays recorded requests under a policy: the real classifier, learner and decision, in recorded order.

Each case that plain and a speculative mode both answered is decided anew. Its outcome is the recorded one of the chosen
arm, with the nearest draft length. The learner sees that outcome alone, as in service. The load is the number
of requests that were in flight with the case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

import msgspec
from slipstream_core.errors import RequestError
from slipstream_core.manifest import Route
from slipstream_core.manifest.engines import SlipstreamEngine, VllmEngine
from slipstream_core.observation import Observation, Subject
from slipstream_core.types import Arm, Decision, GenerationRequest, RequestProfile
from slipstream_gateway.api.parse import parse_request
from slipstream_gateway.decide.estimate import Learner, subject_of
from slipstream_gateway.decide.route import DecisionInputs, Health, decide, fresh_draws

from slipstream_tools.bench.cases import Case, by_place
from slipstream_tools.bench.oracle import FIRST_REQUESTS, Routed, captured, chosen_s, known_times, worst_class
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import PLAIN, SPECULATIVE, Worst
from slipstream_tools.route import forecast


class Classifier(Protocol):
    def classify(self, request: GenerationRequest) -> RequestProfile: ...


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """One way to serve all requests: its mean E2E, and its share of the oracle's saving over always plain."""

    name: str
    mean_e2e_s: float
    saved_s: float
    captured: float | None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one policy. `totals` compares it with always plain, always speculative and the per-request oracle.

    `captured_first` covers the first `first_requests`, `captured_warm` those after them. `refused` counts requests that
    this gateway does not accept; they count as plain. `reasons` counts `arm: reason`.
    """

    policy: str
    requests: int
    first_requests: int
    totals: tuple[Totals, ...]
    captured_first: float | None
    captured_warm: float | None
    worst_class: Worst | None
    speculated: int
    refused: int
    reasons: dict[str, int]


class Replayer:
    """The decisions of one policy's gateway, without servers. It learns during the replay: use one per replay."""

    def __init__(self, route: Route, *, classifier: Classifier, learner: Learner, seed: int) -> None:
        self._route = route
        self._classifier = classifier
        self._learner = learner
        self._seed = seed

    def run(self, cases: Sequence[Case], modes: Sequence[str]) -> Replay:
        """Decide `cases` in their order and sum the recorded times of the chosen arms. `modes` are those of the run."""
        known = {place: known_times(members, modes) for place, members in by_place(cases).items()}
        chosen: list[Routed] = []
        reasons: Counter[str] = Counter()
        for case in cases:
            times = known[case.draft, case.concurrency].get(case.index)
            if times is None or PLAIN not in case.rows:
                continue
            try:
                subject, decision = self._decide(case)
            except RequestError:
                chosen.append(Routed(case, case.rows[PLAIN], times))
                continue
            row = _outcome(case, decision)
            reasons[f"{decision.arm}: {decision.reason}"] += 1
            self._learner.record(_observation(subject, decision, row, self._route))
            chosen.append(Routed(case, row, times))
        return _replay(self._route, chosen, dict(reasons.most_common()), len(chosen) - reasons.total(), self._seed)

    def _decide(self, case: Case) -> tuple[Subject, Decision]:
        """The decision, and the subject of its outcome. Raises `RequestError` where this gateway refuses."""
        request = parse_request(msgspec.json.encode(case.rows[PLAIN].request))
        profile = self._classifier.classify(request)
        subject = subject_of(profile, request.temperature, pair=self._route.key)
        expected = forecast(self._learner, request, profile, self._route, load=case.rows[PLAIN].load)
        seed = f"replay {self._seed}: {case.draft}/{case.concurrency}/{case.round}/{case.index}"
        draws = fresh_draws(Random(seed).randbytes)
        health = Health(adaptive=SPECULATIVE in case.rows and _chooses_draft_lengths(self._route))
        inputs = DecisionInputs(request, profile, self._route, forecast=expected, draws=draws, health=health)
        return subject, decide(inputs)


def _chooses_draft_lengths(route: Route) -> bool:
    """Whether the pair's servers choose the draft length of the mode `speculative` in each step."""
    return isinstance(route.pair.spec.engine, SlipstreamEngine | VllmEngine)


def _outcome(case: Case, decision: Decision) -> Row:
    """The recorded row of the chosen arm; plain where the case has no speculative one."""
    forced = [row for row in case.rows.values() if row.arm == Arm.SPECULATIVE and row.mode.startswith("speculative")]
    if decision.arm is not Arm.SPECULATIVE or not forced:
        return case.rows[PLAIN]
    if decision.adaptive:
        return case.rows[SPECULATIVE]
    return min(forced, key=lambda row: abs((row.draft_length or 0) - decision.draft_length))


def _observation(subject: Subject, decision: Decision, row: Row, route: Route) -> Observation:
    speculative = row.arm == Arm.SPECULATIVE
    backend = route.speculative if speculative and route.speculative is not None else route.plain
    return Observation(
        subject=subject,
        request_class=decision.request_class,
        arm=decision.arm,
        reason=decision.reason,
        draft_length=row.draft_length or 0,
        pool=backend.pool,
        status="ok",
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        drafted=row.drafted,
        accepted=row.accepted,
        rejections=sum(row.rejected_at),
        steps=row.steps or 0,
        ttft_s=row.ttft_s,
        e2e_s=row.e2e_s or 0.0,
        load=row.load,
        batch_draft_length=float(decision.step_draft_tokens if speculative else 0),
        price_per_gpu_hour=backend.price_per_gpu_hour,
        time_s=row.started_s,
    )


def _replay(route: Route, chosen: Sequence[Routed], reasons: dict[str, int], refused: int, seed: int) -> Replay:
    first, warm = chosen[:FIRST_REQUESTS], chosen[FIRST_REQUESTS:]
    name = route.policy.metadata.name if route.policy is not None else "no policy"
    ways: dict[str, Callable[[Routed], float]] = {
        "always plain": lambda item: item.known.plain_s,
        "always speculative": lambda item: item.known.speculative_s(),
        name: chosen_s,
        "per-request oracle": lambda item: item.known.oracle_s,
    }
    return Replay(
        policy=name,
        requests=len(chosen),
        first_requests=len(first),
        totals=tuple(_totals(way, chosen, time_s) for way, time_s in ways.items()) if chosen else (),
        captured_first=captured(first, chosen_s),
        captured_warm=captured(warm, chosen_s),
        worst_class=worst_class(chosen, chosen_s, seed),
        speculated=sum(item.row.arm == Arm.SPECULATIVE for item in chosen),
        refused=refused,
        reasons=reasons,
    )


def _totals(name: str, chosen: Sequence[Routed], time_s: Callable[[Routed], float]) -> Totals:
    total_s = sum(time_s(item) for item in chosen)
    return Totals(
        name=name,
        mean_e2e_s=total_s / len(chosen),
        saved_s=sum(item.known.plain_s for item in chosen) - total_s,
        captured=captured(chosen, time_s),
    )
