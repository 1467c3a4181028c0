"""Where a request goes, and why: steps 1-4 and 7 of the design's decision, with static thresholds.

Pure: the same request, profile, route and health give the same decision. Each step returns a verdict or None for
"go on"; the first verdict wins.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from slipstream_gateway.errors import UnsupportedParameter
from slipstream_gateway.manifest import ClassRule, Route, SpeculationPolicy
from slipstream_gateway.types import Arm, Decision, GenerationRequest, Mode, Reason, RequestProfile, TaskType

Number = float | int | str | bool


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What passive health says of a route at this moment: whether any server of the speculative arm is up."""

    speculative_available: bool = True


class _Case(NamedTuple):
    """What the steps look at. `numbers` collects every figure that was looked at, in order."""

    request: GenerationRequest
    profile: RequestProfile
    route: Route
    health: Health
    numbers: dict[str, Number]


class _Verdict(NamedTuple):
    """An arm with its reason; `detail` is one sentence."""

    arm: Arm
    reason: Reason
    detail: str


def decide(request: GenerationRequest, profile: RequestProfile, route: Route, health: Health | None = None) -> Decision:
    """The arm, the draft length and the reason for `request`.

    Raises:
        UnsupportedParameter: no arm that may be used can honour one of the request's parameters.
    """
    case = _Case(request, profile, route, health or Health(), _profile_numbers(profile))
    rule = _class_rule(route.policy, profile)
    features = request.features | {"n"} if request.n > 1 else request.features
    missing_plain = route.plain.capabilities.missing(features)
    verdict = _switches(case)
    if verdict is not None and missing_plain:
        raise _unsupported(missing_plain[0], route)
    verdict = (
        verdict
        or _capabilities(case, features, missing_plain)
        or _client_mode(case)
        or _class_policy(case, rule)
        or _thresholds(case)
        or _Verdict(Arm.SPECULATIVE, Reason.SPECULATION_PAYS, "no rule of the policy speaks against speculation")
    )
    draft_length = _draft_length(route, rule) if verdict.arm is Arm.SPECULATIVE else 0
    return Decision(
        arm=verdict.arm,
        reason=verdict.reason,
        request_class=profile.request_class,
        draft_length=draft_length,
        detail=verdict.detail,
        numbers=case.numbers,
    )


def _profile_numbers(profile: RequestProfile) -> dict[str, Number]:
    return {
        "task": str(profile.task),
        "confidence": profile.confidence,
        "expected_output_tokens": profile.expected_output_tokens,
        "rare_token_share": profile.rare_token_share,
        "prompt_tokens": profile.prompt_tokens,
        "structured_output": profile.structured_output,
    }


def _switches(case: _Case) -> _Verdict | None:
    """Step 1: whether this pair may speculate at all now."""
    route = case.route
    pair, policy = route.pair, route.policy
    if pair.spec.kill_switch:
        return _plain(Reason.KILL_SWITCH, f"the kill switch of ModelPair/{pair.metadata.name} is on")
    if policy is None:
        return _plain(Reason.NO_POLICY, f"no SpeculationPolicy is for ModelPair/{pair.metadata.name}")
    if policy.spec.kill_switch:
        return _plain(Reason.KILL_SWITCH, f"the kill switch of SpeculationPolicy/{policy.metadata.name} is on")
    if not policy.spec.enabled:
        return _plain(Reason.POLICY_DISABLED, f"SpeculationPolicy/{policy.metadata.name} is not enabled")
    if route.speculative is None:
        return _plain(Reason.NO_DRAFT, f"ModelPair/{pair.metadata.name} has no draft")
    if not route.status.ready:
        why = route.status.message or "its status says so"
        return _plain(Reason.PAIR_NOT_READY, f"ModelPair/{pair.metadata.name} is not ready: {why}")
    if not case.health.speculative_available:
        return _plain(Reason.SPECULATIVE_UNAVAILABLE, "no server of the speculative arm is up")
    return None


def _capabilities(case: _Case, features: frozenset[str], missing_plain: tuple[str, ...]) -> _Verdict | None:
    """Step 2: a request that one arm cannot honour exactly goes to the other."""
    speculative = case.route.speculative
    missing = speculative.capabilities.missing(features) if speculative else tuple(sorted(features))
    if missing and missing_plain:
        both = [name for name in missing if name in missing_plain]
        raise _unsupported((both or list(missing_plain))[0], case.route)
    if missing:
        case.numbers["unsupported"] = ", ".join(missing)
        return _plain(Reason.UNSUPPORTED_PARAMETER, f"the speculative arm cannot honour {', '.join(missing)} exactly")
    if missing_plain:
        case.numbers["unsupported"] = ", ".join(missing_plain)
        return _Verdict(
            Arm.SPECULATIVE,
            Reason.UNSUPPORTED_PARAMETER,
            f"only the speculative arm honours {', '.join(missing_plain)}",
        )
    return None


def _client_mode(case: _Case) -> _Verdict | None:
    """Step 3: what the client asked for, where the policy lets clients choose."""
    mode, policy = case.request.mode, case.route.policy
    if mode is Mode.AUTO or policy is None:
        return None
    case.numbers["client_mode"] = str(mode)
    case.numbers["allow_client_mode"] = policy.spec.allow_client_mode
    if not policy.spec.allow_client_mode:
        return None
    arm = Arm.SPECULATIVE if mode is Mode.SPECULATIVE else Arm.PLAIN
    return _Verdict(arm, Reason.CLIENT_ASKED, f"the client asked for {mode}")


def _class_policy(case: _Case, rule: ClassRule | None) -> _Verdict | None:
    """Step 4, first half: the policy's rule for the class, and classes that nobody knows."""
    policy, profile = case.route.policy, case.profile
    if policy is None:
        return None
    if rule is not None:
        case.numbers["class_rule"] = f"{rule.name}: {rule.mode}"
        if rule.mode == "plain":
            return _plain(Reason.CLASS_DISABLED, f"the policy's rule for {rule.name} says plain")
        if rule.mode == "speculative":
            detail = f"the policy's rule for {rule.name} says speculative"
            return _Verdict(Arm.SPECULATIVE, Reason.CLASS_ENABLED, detail)
    case.numbers["min_confidence"] = policy.spec.min_confidence
    if not _is_known(policy, profile):
        detail = f"the task is uncertain: {profile.task} with confidence {profile.confidence:.2f}"
        return _plain(Reason.UNKNOWN_CLASS, f"{detail}, {policy.spec.min_confidence:g} is asked for")
    return None


def _thresholds(case: _Case) -> _Verdict | None:
    """Step 4, second half: expected length, rare tokens, temperature, context length, in this order."""
    policy, profile, numbers = case.route.policy, case.profile, case.numbers
    if policy is None:
        return None
    spec = policy.spec
    numbers["min_output_tokens"] = spec.min_output_tokens
    if profile.expected_output_tokens < spec.min_output_tokens:
        expected = f"about {profile.expected_output_tokens:.0f} tokens are expected"
        return _plain(Reason.SHORT_OUTPUT, f"{expected}, fewer than {spec.min_output_tokens}")
    numbers["max_rare_token_share"] = spec.max_rare_token_share
    if profile.rare_token_share > spec.max_rare_token_share:
        share = f"{profile.rare_token_share:.0%} rare tokens are expected"
        return _plain(Reason.RARE_TOKENS, f"{share}, more than {spec.max_rare_token_share:.0%}")
    numbers["temperature"] = case.request.temperature
    numbers["max_temperature"] = spec.max_temperature
    if case.request.temperature > spec.max_temperature:
        temperature = f"temperature {case.request.temperature:g}"
        return _plain(Reason.HOT_SAMPLING, f"{temperature} is above {spec.max_temperature:g}")
    numbers["max_context_tokens"] = spec.max_context_tokens
    if profile.prompt_tokens > spec.max_context_tokens:
        prompt = f"about {profile.prompt_tokens} prompt tokens"
        return _plain(Reason.LONG_CONTEXT, f"{prompt} are more than {spec.max_context_tokens}")
    return None


def _is_known(policy: SpeculationPolicy, profile: RequestProfile) -> bool:
    return profile.task is not TaskType.UNKNOWN and profile.confidence >= policy.spec.min_confidence


def _class_rule(policy: SpeculationPolicy | None, profile: RequestProfile) -> ClassRule | None:
    """The rule for `task/length`, else the one for the task, else None; none for an unknown class."""
    if policy is None or not policy.spec.classes or not _is_known(policy, profile):
        return None
    rules = {rule.name: rule for rule in policy.spec.classes}
    return rules.get(profile.request_class) or rules.get(str(profile.task))


def _draft_length(route: Route, rule: ClassRule | None) -> int:
    """The rule's draft length, else the policy's, else the pair's longest."""
    policy = route.policy
    chosen = (rule.draft_tokens if rule else None) or (policy.spec.draft_tokens if policy else None)
    return chosen or route.pair.spec.max_draft_tokens


def _plain(reason: Reason, detail: str) -> _Verdict:
    return _Verdict(Arm.PLAIN, reason, detail)


def _unsupported(param: str, route: Route) -> UnsupportedParameter:
    return UnsupportedParameter(f"The parameter '{param}' is not supported by the model '{route.model}'.", param=param)
