"""Steps 1 to 4 of the decision: the conditions that decide regardless of the predicted saving.

Each step returns a choice, or None to continue.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream_core.errors import InvalidRequest, UnsupportedParameter
from slipstream_core.manifest import Route
from slipstream_core.manifest.capabilities import STATEFUL
from slipstream_core.manifest.status import Phase
from slipstream_core.types import Arm, Mode, Reason

from slipstream_gateway.decide.route.case import (
    RULES_MIN_CONFIDENCE,
    ArmChoice,
    Case,
    has_fixed_draft_length,
    is_known,
    one_line,
    plain,
)
from slipstream_gateway.decide.route.refusals import unsupported

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
    """Step 1: whether this pair may speculate at all now. Raises `UnsupportedParameter` where it may not, and plain
    servers cannot honour the request."""
    choice = off(case.route) or _withheld(case) or _no_server(case)
    if choice is not None and case.missing_plain:
        raise unsupported(case.missing_plain[0], case.route, case.request)
    return choice


def _withheld(case: Case) -> ArmChoice | None:
    """A class that the operator has rolled back, or has had no outcomes of for too long. A class at a step of its
    rollout is neither: `decide` holds back the requests beyond its share."""
    standing = case.standing
    if standing is None:
        return None
    why = f": {one_line(standing.message)}" if standing.message else ""
    if standing.phase is Phase.ROLLED_BACK:
        return plain(Reason.ROLLED_BACK, f"{case.request_class} is rolled back{why}")
    if standing.phase is Phase.STALE:
        return plain(Reason.STATISTICS_STALE, f"there are no recent outcomes of {case.request_class}{why}")
    return None


def _no_server(case: Case) -> ArmChoice | None:
    health = case.health
    if health.speculative_available:
        return None
    if health.withheld is not None:
        return plain(health.withheld.reason, one_line(health.withheld.detail))
    return plain(Reason.SPECULATIVE_UNAVAILABLE, "no server of the speculative arm is up")


def capabilities(case: Case) -> ArmChoice | None:
    """Step 2: a request that one arm cannot honour exactly goes to the other."""
    missing, missing_plain = missing_speculative(case), case.missing_plain
    if missing and missing_plain:
        both = [name for name in missing if name in missing_plain]
        raise unsupported((both or list(missing_plain))[0], case.route, case.request)
    if missing:
        return plain(Reason.UNSUPPORTED_PARAMETER, _cannot_honour(case.route, case.features, missing))
    if missing_plain:
        detail = f"only the speculative arm honours {', '.join(missing_plain)}"
        return ArmChoice(Arm.SPECULATIVE, Reason.UNSUPPORTED_PARAMETER, detail, case.longest)
    return None


def missing_speculative(case: Case) -> tuple[str, ...]:
    """The request's features that the speculative arm lacks."""
    speculative = case.route.speculative
    return speculative.capabilities.missing(case.features) if speculative else tuple(sorted(case.features))


def _cannot_honour(route: Route, features: frozenset[str], missing: tuple[str, ...]) -> str:
    names = ", ".join(missing)
    if route.fallback is not None and route.plain_for(features) is route.fallback:
        return f"servers that speculate refuse {names}, so that one without speculation decodes it"
    return f"the speculative arm cannot honour {names} exactly"


def client_mode(case: Case) -> ArmChoice | None:
    """Step 3: the client's choice, if the policy permits it."""
    mode = case.request.mode
    if mode is Mode.AUTO or not case.spec.allow_client_mode:
        return None
    detail = f"the client asked for {mode.value}"
    if mode is Mode.PLAIN:
        return plain(Reason.CLIENT_ASKED, detail)
    return ArmChoice(Arm.SPECULATIVE, Reason.CLIENT_ASKED, detail, _requested_draft_length(case))


def class_rule(case: Case) -> ArmChoice | None:
    """Step 4: the policy's rule for the class. The operator's `Disabled` applies if the policy does not specify
    otherwise."""
    rule, standing = case.rule, case.standing
    is_disabled = standing is not None and standing.phase is Phase.DISABLED
    if is_disabled and (rule is None or rule.mode == "auto"):
        return plain(Reason.CLASS_DISABLED, f"{case.request_class} is disabled by the policy's status")
    if rule is None:
        return None
    if rule.mode == "plain":
        return plain(Reason.CLASS_DISABLED, f"the policy's rule for {rule.name} requires plain")
    if rule.mode == "speculative":
        best = case.saving.draft_length if case.saving is not None else case.longest
        detail = f"the policy's rule for {rule.name} requires speculative"
        return ArmChoice(Arm.SPECULATIVE, Reason.CLASS_ENABLED, detail, case.taken(rule.draft_tokens or best))
    return None


def unknown_class(case: Case) -> ArmChoice | None:
    """Step 4: an unknown class."""
    profile, least = case.profile, least_confidence(case)
    if least is None or is_known(case.spec, profile):
        return None
    detail = f"the task is uncertain: {profile.task.value} with confidence {profile.confidence:.2f}"
    return plain(Reason.UNKNOWN_CLASS, f"{detail}, at least {least:g} is required")


def short_output(case: Case) -> ArmChoice | None:
    """Step 4: a short expected answer."""
    shortest = least_output_tokens(case)
    if shortest is None or case.output_tokens >= shortest:
        return None
    return plain(Reason.SHORT_OUTPUT, f"about {case.output_tokens:.0f} tokens are expected, fewer than {shortest}")


def rare_tokens(case: Case) -> ArmChoice | None:
    """Step 4: many rare tokens expected."""
    rarest, expected = most_rare_tokens(case), case.profile.rare_token_share
    if rarest is None or expected <= rarest:
        return None
    return plain(Reason.RARE_TOKENS, f"{expected:.0%} rare tokens are expected, more than {rarest:.0%}")


def hot_sampling(case: Case) -> ArmChoice | None:
    """Step 4: a high temperature."""
    hottest, temperature = case.spec.max_temperature, case.request.temperature
    if temperature <= hottest:
        return None
    return plain(Reason.HOT_SAMPLING, f"temperature {temperature:g} is above {hottest:g}")


def long_context(case: Case) -> ArmChoice | None:
    """Step 4: a long prompt."""
    longest, tokens = case.spec.max_context_tokens, case.profile.prompt_tokens
    if tokens <= longest:
        return None
    return plain(Reason.LONG_CONTEXT, f"about {tokens} prompt tokens are more than {longest}")


THRESHOLDS: tuple[Callable[[Case], ArmChoice | None], ...] = (short_output, rare_tokens, hot_sampling, long_context)


# The policy's limits; without a forecast there is always one.
def least_confidence(case: Case) -> float | None:
    """The smallest confidence in a task."""
    own = case.spec.min_confidence
    return RULES_MIN_CONFIDENCE if own is None and case.forecast is None else own


def least_output_tokens(case: Case) -> int | None:
    """The shortest answer."""
    own = case.spec.min_output_tokens
    return RULES_MIN_OUTPUT_TOKENS if own is None and case.forecast is None else own


def most_rare_tokens(case: Case) -> float | None:
    """The largest share of rare tokens."""
    own = case.spec.max_rare_token_share
    return RULES_MAX_RARE_TOKEN_SHARE if own is None and case.forecast is None else own


def check_state(features: frozenset[str], route: Route) -> None:
    """Raises `UnsupportedParameter` if `features` refer to state of one server and the model has several servers."""
    stateful = sorted(features & STATEFUL)
    if stateful and len(route.servers) > 1:
        why = f"the model '{route.model}' has several servers, and each stores only its own responses"
        message = f"The parameter '{stateful[0]}' is not supported: {why}. Send the whole conversation in 'input'."
        raise UnsupportedParameter(message, param=stateful[0])


def _requested_draft_length(case: Case) -> int:
    """The client's draft length, else the maximum. Raises `InvalidRequest` if the pair does not support it."""
    requested = case.request.draft_length
    if requested is None:
        return case.longest
    cap = case.route.pair.spec.max_draft_tokens
    fixed = has_fixed_draft_length(case.route)
    if not (cap if fixed else 1) <= requested <= cap:
        expected = f"{cap}, the fixed draft length of its servers" if fixed else f"1 to {cap}"
        message = f"Invalid header 'x-slipstream-draft-length': expected {expected}, got {requested}."
        raise InvalidRequest(message, param="x-slipstream-draft-length")
    return case.taken(requested)
