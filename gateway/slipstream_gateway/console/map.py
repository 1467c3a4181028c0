"""The break-even map at the present load: expected length against acceptance, computed by the functions of the
decision.

The forecast is the learner's for a request without data. On the map its length and its acceptance vary, while all else
(the times of both arms at this load, the neighbours) stays as learned. A class whose arm does not follow from its place
on the map, because a rule or a confidence bound decides, has a note.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from slipstream_core.manifest import SpeculationPolicy
from slipstream_core.observation import Estimate, Forecast, Level, Subject
from slipstream_core.types import (
    BY_SAVING,
    MEDIUM_MAX_TOKENS,
    SHORT_MAX_TOKENS,
    Arm,
    Endpoint,
    GenerationRequest,
    LengthBin,
    Reason,
    RequestProfile,
    TaskType,
)

from slipstream_gateway.console.state import Traffic
from slipstream_gateway.decide.estimate import ForecastQuery
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, decide
from slipstream_gateway.decide.route.case import draft_lengths
from slipstream_gateway.decide.route.predicted_saving import PredictedSaving, predict_saving
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.decider import Learner

LENGTHS = tuple(round(4.0 * 256.0 ** (step / 32.0), 2) for step in range(33))
ACCEPTANCES = tuple(step / 24.0 for step in range(25))
_TYPICAL_TOKENS = {LengthBin.SHORT: 20.0, LengthBin.MEDIUM: 80.0, LengthBin.LONG: 240.0}
_BOUNDS = {
    LengthBin.SHORT: (0.0, SHORT_MAX_TOKENS),
    LengthBin.MEDIUM: (SHORT_MAX_TOKENS + 1.0, MEDIUM_MAX_TOKENS),
    LengthBin.LONG: (MEDIUM_MAX_TOKENS + 1.0, math.inf),
}
_PROMPT_TOKENS = 256
_BY_BREAK_EVEN = BY_SAVING | {Reason.BREAK_EVEN}
_DRAWS = msgspec.structs.replace(NO_DRAWS, rollout=0.0)  # only at a share of 0 does a rollout hold back a whole class
_ANY_CLASS = f"{TaskType.UNKNOWN}/{LengthBin.MEDIUM}"


class ClassPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A class on the map. `measured`: its acceptance is that of the window, else the expectation of the estimates.
    `ruled` is the arm of its requests if it does not follow from the map, else empty; `why` is the deciding rule."""

    request_class: str
    output_tokens: float
    acceptance: float
    measured: bool
    requests: int
    saving_s: float
    saved: float
    ruled: str = ""
    why: str = ""


class BreakEvenMap(msgspec.Struct, frozen=True, kw_only=True):
    """One pair's map. `saved[a][l]` is the share of a plain answer's time that speculation is predicted to save at
    `acceptances[a]` and `lengths[l]` with the best draft length; it pays above `margin`. `decision` is the policy's.
    `unknown` is the reason why there is no map."""

    pair: str
    load: float = 0.0
    margin: float = 0.0
    decision: str = ""
    longest_draft: int = 0
    plain_tpot_s: float = 0.0
    step_base_s: float = 0.0
    step_per_draft_token_s: float = 0.0
    level: str = ""
    lengths: Sequence[float] = ()
    acceptances: Sequence[float] = ()
    saved: Sequence[Sequence[float]] = ()
    classes: Sequence[ClassPoint] = ()
    unknown: str = ""


def break_even_map(served: ServedRoute, learner: Learner, traffic: Sequence[Traffic]) -> BreakEvenMap:
    """The map of a pair, with the classes of `traffic`, which is its own."""
    route, pair = served.route, served.route.key
    if route.speculative is None or route.policy is None:
        return BreakEvenMap(pair=pair, unknown="The pair has no draft." if route.policy else "The pair has no policy.")
    state = _PairState(served, route.policy, learner, _mean_prompt(traffic))
    forecast = state.forecast(_ANY_CLASS)
    if forecast is None:
        return BreakEvenMap(pair=pair, unknown="No server is up.")
    if forecast.acceptance is None:
        return BreakEvenMap(
            pair=pair, unknown="These servers do not report draft tokens, so the acceptance is unknown."
        )
    points = [state.point(name, rows) for name, rows in _by_class(traffic).items()]
    return BreakEvenMap(
        pair=pair,
        load=forecast.load,
        margin=route.policy.spec.margin,
        decision=route.policy.spec.decision,
        longest_draft=state.longest,
        plain_tpot_s=forecast.plain_tpot_s.mean,
        step_base_s=forecast.step_base_s.mean,
        step_per_draft_token_s=forecast.step_per_draft_token_s.mean,
        level=forecast.plain_tpot_s.level.value,
        lengths=LENGTHS,
        acceptances=ACCEPTANCES,
        saved=[[_share(state.best(forecast, tokens, beta)) for tokens in LENGTHS] for beta in ACCEPTANCES],
        classes=[point for point in points if point is not None],
    )


class _PairState:
    """One pair's servers in their present state."""

    def __init__(self, served: ServedRoute, policy: SpeculationPolicy, learner: Learner, prompt_tokens: int) -> None:
        self._served = served
        self._learner = learner
        self._prompt_tokens = prompt_tokens
        self.shortest, self.longest = draft_lengths(served.route, policy.spec, None)

    def forecast(self, request_class: str) -> Forecast | None:
        """The forecast for a new request of this class; None if no server is up."""
        route, plain = self._served.route, self._served.plain.least_busy()
        target = self._served.speculative.least_busy() if self._served.speculative is not None else None
        if target is None or route.speculative is None:
            return None
        task, _, length = request_class.partition("/")
        expected = _TYPICAL_TOKENS[LengthBin(length)]
        return self._learner.forecast(ForecastQuery(
            Subject(
                pair=route.key, cold_class=request_class, temperature=0,
            ),
            RequestProfile(
                task=TaskType(task), expected_output_tokens=expected, rare_token_share=0.0, structured_output=False,
                prompt_tokens=self._prompt_tokens, confidence=1.0,
            ),
            plain_pool=route.plain.pool,
            speculative_pool=route.speculative.pool,
            plain_load=plain.outstanding + 1.0 if plain is not None else 1.0,
            speculative_load=target.outstanding + 1.0,
            neighbours_draft_length=target.unconditional_draft_lengths / (target.outstanding + 1.0),
            max_tokens=None,
        ))  # fmt: skip

    def best(self, forecast: Forecast, tokens: float, acceptance: float) -> PredictedSaving:
        """The decision's break-even with the given length and acceptance."""
        known = msgspec.structs.replace(forecast, output_tokens=_sure(tokens), acceptance=_sure(acceptance))
        return predict_saving(known, shortest=self.shortest, longest=self.longest)

    def point(self, request_class: str, rows: Sequence[Traffic]) -> ClassPoint | None:
        """The place of the class; None if none of its requests ended regularly within the window."""
        forecast = self.forecast(request_class)
        requests = sum(sum(row.requests) - row.failed - row.refused for row in rows)
        output_tokens = sum(row.output_tokens for row in rows)
        if forecast is None or forecast.acceptance is None or requests <= 0 or not output_tokens:
            return None
        accepted, rejected = sum(sum(row.accepted) for row in rows), sum(row.rejected for row in rows)
        is_measured = accepted + rejected > 0
        acceptance = accepted / (accepted + rejected) if is_measured else forecast.acceptance.mean
        best = self.best(forecast, output_tokens / requests, acceptance)
        ruled, why = self._ruled(request_class, forecast, best, acceptance)
        return ClassPoint(
            request_class=request_class,
            output_tokens=output_tokens / requests,
            acceptance=acceptance,
            measured=is_measured,
            requests=requests,
            saving_s=best.saving_s,
            saved=_share(best),
            ruled=ruled,
            why=why,
        )

    def _ruled(
        self, request_class: str, forecast: Forecast, best: PredictedSaving, acceptance: float
    ) -> tuple[str, str]:
        """The arm of the class's requests and the deciding rule, if it is not the break-even alone."""
        route = self._served.route
        task, _, length = request_class.partition("/")
        low, high = _BOUNDS[LengthBin(length)]
        profile = RequestProfile(
            task=TaskType(task),
            expected_output_tokens=min(max(best.output_tokens, low), high),
            rare_token_share=0.0,
            structured_output=False,
            prompt_tokens=self._prompt_tokens,
            confidence=1.0,
        )
        decision = decide(
            DecisionInputs(
                GenerationRequest(endpoint=Endpoint.CHAT, model=route.model, temperature=0.0),
                profile,
                route,
                forecast=_known(forecast, best.output_tokens, acceptance),
                draws=_DRAWS,
            )
        )
        arm = Arm.SPECULATIVE if decision.arm is Arm.SPECULATIVE else Arm.PLAIN
        spec = route.policy.spec if route.policy is not None else None
        pays = spec is not None and best.saving_s > spec.margin * best.plain_s
        follows = decision.reason in _BY_BREAK_EVEN and (arm is Arm.SPECULATIVE) == pays
        if follows and spec is not None and spec.decision != "rules":
            return "", ""
        return arm.value, decision.detail


def _known(forecast: Forecast, tokens: float, acceptance: float) -> Forecast:
    """`forecast` with the measured values of the class in place of the expected ones, with unchanged uncertainty."""
    expected = forecast.acceptance
    return msgspec.structs.replace(
        forecast,
        output_tokens=msgspec.structs.replace(forecast.output_tokens, mean=tokens),
        acceptance=msgspec.structs.replace(expected, mean=acceptance) if expected is not None else None,
    )


def _sure(value: float) -> Estimate:
    return Estimate(mean=value, se=0.0, samples=1.0, level=Level.PRIOR)


def _share(best: PredictedSaving) -> float:
    """The saved share of the plain answer's time, clipped at -1: twice as slow, or worse."""
    share = best.saving_s / best.plain_s if best.plain_s > 0.0 else 0.0
    return round(max(share, -1.0), 3) if math.isfinite(share) else 0.0


def _mean_prompt(traffic: Sequence[Traffic]) -> int:
    requests = sum(sum(row.requests) - row.failed - row.refused for row in traffic)
    tokens = sum(row.prompt_tokens for row in traffic)
    return round(tokens / requests) if requests > 0 and tokens else _PROMPT_TOKENS


def _by_class(traffic: Sequence[Traffic]) -> Mapping[str, list[Traffic]]:
    found: dict[str, list[Traffic]] = {}
    for row in traffic:
        found.setdefault(row.request_class, []).append(row)
    return found
