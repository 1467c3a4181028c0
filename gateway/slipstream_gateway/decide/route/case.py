"""The inputs of the decision's steps, and their result."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from slipstream_core.manifest import ClassRule, ClassStanding, Route
from slipstream_core.manifest.speculation_policy import SpeculationPolicySpec, rule_of
from slipstream_core.observation import Draws, Forecast, Level
from slipstream_core.types import Arm, GenerationRequest, LengthBin, Reason, RequestProfile, TaskType, Withheld

from slipstream_gateway.decide.route.predicted_saving import PredictedSaving, predict_saving

Number = float | int | str | bool
RULES_MIN_CONFIDENCE = 0.4

# Three answers of a class; after forgetting, they weigh slightly less.
_SETTLED_SAMPLES = 2.8
_NO_POLICY = SpeculationPolicySpec(pair="none", decision="rules", protect="throughput")
_CLASSES = {(task, length): f"{task}/{length}" for task in TaskType for length in LengthBin}


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a route's servers: whether any server of the speculative arm can take the request. `withheld` is the
    reason why servers that are up may not; None if none is up. `longest_draft` is the maximum draft length that all of
    them accept, None without a maximum. `adaptive`: each of them can verify fewer draft tokens than that, without an
    effect on the answer."""

    speculative_available: bool = True
    withheld: Withheld | None = None
    longest_draft: int | None = None
    adaptive: bool = False


class DecisionInputs(NamedTuple):
    """Everything that a decision depends on. `pressure` in [0, 1] is the pair's; see `pressure`."""

    request: GenerationRequest
    profile: RequestProfile
    route: Route
    forecast: Forecast | None
    draws: Draws
    health: Health = Health()
    pressure: float = 0.0


class ArmChoice(NamedTuple):
    """An arm with its reason; `detail` is one sentence. `draft_length` is 0 exactly when the arm is not speculative."""

    arm: Arm
    reason: Reason
    detail: str
    draft_length: int = 0


class Case(NamedTuple):
    """One request with all inputs of its decision.

    `forecast` and `saving` are None if the policy decides by rules, or no forecast is possible. Without a policy,
    `spec` is one that decides by rules. `standing` limits the speculation of the class, None without a limit.
    `shortest` and `longest` bound the draft length; if the server chooses how many draft tokens it verifies
    (`is_adaptive`), both are its maximum. `features` are the request's,
    `missing_plain` those that plain servers lack.
    """

    request: GenerationRequest
    profile: RequestProfile
    route: Route
    health: Health
    draws: Draws
    spec: SpeculationPolicySpec
    forecast: Forecast | None
    request_class: str
    rule: ClassRule | None
    standing: ClassStanding | None
    shortest: int
    longest: int
    saving: PredictedSaving | None
    features: frozenset[str]
    missing_plain: tuple[str, ...]
    is_adaptive: bool
    pressure: float = 0.0

    def taken(self, draft_length: int) -> int:
        """`draft_length`, capped at the servers' maximum."""
        longest = self.health.longest_draft
        return draft_length if longest is None else min(draft_length, longest)

    @property
    def is_timed(self) -> bool:
        """Whether predicted times are based on a measurement of these servers; without one, only their ratios count."""
        return self.forecast is not None and self.forecast.timed

    @property
    def output_tokens(self) -> float:
        """The expected length: learned from requests like this one, else the classifier's."""
        return _output_tokens(self.profile, self.forecast)


def plain(reason: Reason, detail: str) -> ArmChoice:
    return ArmChoice(Arm.PLAIN, reason, detail)


def one_line(text: str) -> str:
    """`text` from an untrusted source, as part of a sentence."""
    return " ".join(text.split())


def make_case(inputs: DecisionInputs) -> Case:
    """The case of a request: its class, its rule, and the break-even if there is a forecast."""
    request, profile, route, health = inputs.request, inputs.profile, inputs.route, inputs.health
    spec = route.policy.spec if route.policy is not None else _NO_POLICY
    forecast = None if spec.decision == "rules" or route.speculative is None else inputs.forecast
    request_class = _CLASSES[profile.task, LengthBin.of(_output_tokens(profile, forecast))]
    rule = rule_of(spec, request_class) if spec.classes and is_known(spec, profile) else None
    shortest, longest = draft_lengths(route, spec, rule)
    if health.longest_draft is not None and health.longest_draft < longest:
        longest = health.longest_draft
    is_adaptive = health.adaptive and spec.adaptive_draft_length
    if is_adaptive:
        shortest = longest
    features = request.features | {"n"} if request.n > 1 else request.features
    return Case(
        request,
        profile,
        route,
        health,
        inputs.draws,
        spec,
        forecast,
        request_class,
        rule,
        route.standing.of(request_class) if route.standing is not None else None,
        shortest,
        longest,
        predict_saving(forecast, shortest=shortest, longest=longest, adaptive=is_adaptive) if forecast else None,
        features,
        route.plain_for(features).capabilities.missing(features),
        is_adaptive,
        inputs.pressure,
    )


def is_known(spec: SpeculationPolicySpec, profile: RequestProfile) -> bool:
    """Whether the classifier's confidence in the task suffices."""
    least = RULES_MIN_CONFIDENCE if spec.min_confidence is None else spec.min_confidence
    return profile.task is not TaskType.UNKNOWN and profile.confidence >= least


def has_fixed_draft_length(route: Route) -> bool:
    """Whether the servers always speculate with the draft length of their start, which is the pair's maximum."""
    return route.speculative is not None and not route.speculative.drafts_per_request


def _output_tokens(profile: RequestProfile, forecast: Forecast | None) -> float:
    learned = None if forecast is None else forecast.output_tokens
    if learned is not None and learned.level is Level.CLASS and learned.samples >= _SETTLED_SAMPLES:
        return learned.mean
    return profile.expected_output_tokens


def draft_lengths(route: Route, spec: SpeculationPolicySpec, rule: ClassRule | None) -> tuple[int, int]:
    """The minimum and maximum draft length: up to the rule's, else the policy's, else the pair's; servers with a fixed
    draft length use that one."""
    cap = route.pair.spec.max_draft_tokens
    if has_fixed_draft_length(route):
        return cap, cap
    return 1, (rule.draft_tokens if rule else None) or spec.draft_tokens or cap
