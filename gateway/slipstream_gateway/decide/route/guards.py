"""Steps 1 to 4 of the decision: the conditions that decide regardless of the predicted saving.

Each step returns a choice, or None to continue.
"""

from __future__ import annotations

from slipstream_core.errors import InvalidRequest, UnsupportedParameter
from slipstream_core.manifest import Route
from slipstream_core.manifest.capabilities import STATEFUL
from slipstream_core.manifest.status import Phase
from slipstream_core.observation import Forecast, Level
from slipstream_core.types import RESPONSES_FEATURE, Arm, Mode, Reason

from slipstream_gateway.decide.route.case import ArmChoice, Case, has_fixed_draft_length, is_known, one_line, plain

RULES_MIN_OUTPUT_TOKENS = 64
RULES_MAX_RARE_TOKEN_SHARE = 0.12
"""The default thresholds of a policy that decides by rules alone."""


def off(route: Route) -> ArmChoice | None:
    """The reason why no request of `route` may speculate now, whatever its servers support; None: they may."""
    pair, policy = route.pair, route.policy
    if route.killed is not None:
        return plain(Reason.KILL_SWITCH, one_line(route.killed))
    if pair.spec.kill_switch:
        return plain(Reason.KILL_SWITCH, f"the kill switch of ModelPair/{pair.metadata.name} is on")
    if policy is None:
        return plain(Reason.NO_POLICY, f"ModelPair/{pair.metadata.name} has no SpeculationPolicy")
    if policy.spec.kill_switch:
        return plain(Reason.KILL_SWITCH, f"the kill switch of SpeculationPolicy/{policy.metadata.name} is on")
    if not policy.spec.enabled:
        return plain(Reason.POLICY_DISABLED, f"SpeculationPolicy/{policy.metadata.name} is not enabled")
    if route.speculative is None:
        return plain(Reason.NO_DRAFT, f"ModelPair/{pair.metadata.name} has no draft")
    if not route.status.ready:
        why = route.status.message or "its status reports it so"
        return plain(Reason.PAIR_NOT_READY, f"ModelPair/{pair.metadata.name} is not ready: {why}")
    return None


def switches(case: Case) -> ArmChoice | None:
    """Step 1: whether this pair may speculate at all now."""
    if (choice := off(case.route)) is not None:
        return choice
    withheld = _withheld(case)
    if withheld is not None:
        return withheld
    if not case.health.speculative_available and (engine := case.health.withheld) is not None:
        return plain(engine.reason, one_line(engine.detail))
    if not case.health.speculative_available:
        return plain(Reason.SPECULATIVE_UNAVAILABLE, "no server of the speculative arm is up")
    return None


def _withheld(case: Case) -> ArmChoice | None:
    """A class that the operator has rolled back, or has had no outcomes of for too long. A class at a step of its
    rollout is neither: `decide` holds back the requests beyond its share."""
    standing = case.standing
    if standing is None:
        return None
    case.numbers["phase"] = standing.phase.value
    case.numbers["rollout_share"] = standing.share
    why = f": {one_line(standing.message)}" if standing.message else ""
    if standing.phase is Phase.ROLLED_BACK:
        return plain(Reason.ROLLED_BACK, f"{case.request_class} is rolled back{why}")
    if standing.phase is Phase.STALE:
        return plain(Reason.STATISTICS_STALE, f"there are no recent outcomes of {case.request_class}{why}")
    return None


def capabilities(case: Case, features: frozenset[str], missing_plain: tuple[str, ...]) -> ArmChoice | None:
    """Step 2: a request that one arm cannot honour exactly goes to the other."""
    speculative = case.route.speculative
    missing = speculative.capabilities.missing(features) if speculative else tuple(sorted(features))
    if missing and missing_plain:
        both = [name for name in missing if name in missing_plain]
        raise unsupported((both or list(missing_plain))[0], case.route)
    if missing:
        case.numbers["unsupported"] = ", ".join(missing)
        return plain(Reason.UNSUPPORTED_PARAMETER, _cannot_honour(case.route, features, missing))
    if missing_plain:
        case.numbers["unsupported"] = ", ".join(missing_plain)
        detail = f"only the speculative arm honours {', '.join(missing_plain)}"
        return ArmChoice(Arm.SPECULATIVE, Reason.UNSUPPORTED_PARAMETER, detail, case.longest)
    return None


def _cannot_honour(route: Route, features: frozenset[str], missing: tuple[str, ...]) -> str:
    names = ", ".join(missing)
    if route.fallback is not None and route.plain_for(features) is route.fallback:
        return f"servers that speculate refuse {names}, so that one without speculation decodes it"
    return f"the speculative arm cannot honour {names} exactly"


def client_mode(case: Case) -> ArmChoice | None:
    """Step 3: the client's choice, if the policy permits it."""
    mode, spec = case.request.mode, case.spec
    if mode is Mode.AUTO or spec is None:
        return None
    case.numbers["client_mode"] = mode.value
    case.numbers["allow_client_mode"] = spec.allow_client_mode
    if not spec.allow_client_mode:
        return None
    detail = f"the client asked for {mode.value}"
    if mode is Mode.PLAIN:
        return plain(Reason.CLIENT_ASKED, detail)
    return ArmChoice(Arm.SPECULATIVE, Reason.CLIENT_ASKED, detail, _asked_draft_length(case))


def class_rule(case: Case) -> ArmChoice | None:
    """Step 4: the policy's rule for the class. The operator's `Disabled` applies if the policy does not specify
    otherwise."""
    rule, standing = case.rule, case.standing
    is_disabled = standing is not None and standing.phase is Phase.DISABLED
    if is_disabled and (rule is None or rule.mode == "auto"):
        return plain(Reason.CLASS_DISABLED, f"{case.request_class} is disabled by the policy's status")
    if rule is None:
        return None
    case.numbers["class_rule"] = f"{rule.name}: {rule.mode}"
    if rule.mode == "plain":
        return plain(Reason.CLASS_DISABLED, f"the policy's rule for {rule.name} requires plain")
    if rule.mode == "speculative":
        best = case.saving.draft_length if case.saving is not None else case.longest
        detail = f"the policy's rule for {rule.name} requires speculative"
        return ArmChoice(Arm.SPECULATIVE, Reason.CLASS_ENABLED, detail, case.taken(rule.draft_tokens or best))
    return None


def unknown_class(case: Case) -> ArmChoice | None:
    """Step 4: an unknown class. Requests whose own template has been measured need no class."""
    spec, profile = case.spec, case.profile
    if spec is None:
        return None
    case.numbers["min_confidence"] = spec.min_confidence
    if is_known(spec, profile) or (case.forecast is not None and _is_measured(case.forecast)):
        return None
    detail = f"the task is uncertain: {profile.task.value} with confidence {profile.confidence:.2f}"
    return plain(Reason.UNKNOWN_CLASS, f"{detail}, at least {spec.min_confidence:g} is required")


def thresholds(case: Case) -> ArmChoice | None:
    """Step 4: expected length, rare tokens, temperature, context length, in this order."""
    spec, profile, numbers = case.spec, case.profile, case.numbers
    if spec is None:
        return None
    shortest, rarest = spec.min_output_tokens, spec.max_rare_token_share
    if case.forecast is None:  # without measurements the thresholds decide
        shortest = RULES_MIN_OUTPUT_TOKENS if shortest is None else shortest
        rarest = RULES_MAX_RARE_TOKEN_SHARE if rarest is None else rarest
    if shortest is not None:
        numbers["min_output_tokens"] = shortest
        if case.output_tokens < shortest:
            expected = f"about {case.output_tokens:.0f} tokens are expected"
            return plain(Reason.SHORT_OUTPUT, f"{expected}, fewer than {shortest}")
    if rarest is not None:
        numbers["max_rare_token_share"] = rarest
        if profile.rare_token_share > rarest:
            share = f"{profile.rare_token_share:.0%} rare tokens are expected"
            return plain(Reason.RARE_TOKENS, f"{share}, more than {rarest:.0%}")
    numbers["temperature"] = case.request.temperature
    numbers["max_temperature"] = spec.max_temperature
    if case.request.temperature > spec.max_temperature:
        temperature = f"temperature {case.request.temperature:g}"
        return plain(Reason.HOT_SAMPLING, f"{temperature} is above {spec.max_temperature:g}")
    numbers["max_context_tokens"] = spec.max_context_tokens
    if profile.prompt_tokens > spec.max_context_tokens:
        prompt = f"about {profile.prompt_tokens} prompt tokens"
        return plain(Reason.LONG_CONTEXT, f"{prompt} are more than {spec.max_context_tokens}")
    return None


def unsupported(name: str, route: Route) -> UnsupportedParameter:
    """The error for a parameter, or an endpoint, that no server of the model supports."""
    if name == RESPONSES_FEATURE:
        message = f"The endpoint '{name}' is not supported by the model '{route.model}'; use '/v1/chat/completions'."
        return UnsupportedParameter(message, param=None, code="unsupported_endpoint")
    return UnsupportedParameter(f"The parameter '{name}' is not supported by the model '{route.model}'.", param=name)


def check_state(features: frozenset[str], route: Route) -> None:
    """Raises `UnsupportedParameter` if `features` refer to state of one server and the model has several servers."""
    stateful = sorted(features & STATEFUL)
    if stateful and len(route.servers) > 1:
        why = f"the model '{route.model}' has several servers, and each stores only its own responses"
        message = f"The parameter '{stateful[0]}' is not supported: {why}. Send the whole conversation in 'input'."
        raise UnsupportedParameter(message, param=stateful[0])


def _is_measured(forecast: Forecast) -> bool:
    """Whether both the length and the effect of speculation were measured on requests like this one."""
    speculation = forecast.acceptance if forecast.acceptance is not None else forecast.step_base_s
    return forecast.output_tokens.level is Level.FINGERPRINT and speculation.level is Level.FINGERPRINT


def _asked_draft_length(case: Case) -> int:
    """The client's draft length, else the maximum. Raises `InvalidRequest` if the pair does not support it."""
    asked = case.request.draft_length
    if asked is None:
        return case.longest
    cap = case.route.pair.spec.max_draft_tokens
    fixed = has_fixed_draft_length(case.route)
    if not (cap if fixed else 1) <= asked <= cap:
        expected = f"{cap}, the fixed draft length of its servers" if fixed else f"1 to {cap}"
        message = f"Invalid header 'x-slipstream-draft-length': expected {expected}, got {asked}."
        raise InvalidRequest(message, param="x-slipstream-draft-length")
    return case.taken(asked)
