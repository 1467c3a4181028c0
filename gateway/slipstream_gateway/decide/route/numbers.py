"""The figures behind a decision, computed on access, because most are never read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from slipstream_core.manifest.speculation_policy import SpeculationPolicySpec
from slipstream_core.manifest.status import Phase
from slipstream_core.observation import Forecast
from slipstream_core.types import Mode, Reason, RequestProfile

from slipstream_gateway.decide.route import break_even, guards
from slipstream_gateway.decide.route.break_even import se_s
from slipstream_gateway.decide.route.case import Case, Number, draft_lengths
from slipstream_gateway.decide.route.predicted_saving import PredictedSaving
from slipstream_gateway.decide.route.steps import (
    STEPS,
    Step,
    hold_back_share,
    is_explorable,
    is_not_reached,
    is_shareable,
)


class Numbers(Mapping[str, Number]):
    """The numbers of a case, by stable names, in the order of their use."""

    __slots__ = ("_case", "_found")

    def __init__(self, case: Case) -> None:
        self._case = case
        self._found: dict[str, Number] | None = None

    def __getitem__(self, name: str) -> Number:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> dict[str, Number]:
        if self._found is None:
            case, found = self._case, _of_profile(self._case.profile)
            if case.forecast is not None and case.saving is not None and case.spec is not None:
                found |= _of_forecast(case.forecast)
                found |= _of_saving(case, case.saving, case.spec)
                if case.is_timed:
                    found["saving_se_s"] = se_s(case.route, case.forecast, case.saving)
            if case.pressure > 0.0:
                found |= {"pressure": case.pressure, "longest_draft_length": case.longest}
            self._found = found | _of_steps(case)
        return self._found


def _of_profile(profile: RequestProfile) -> dict[str, Number]:
    return {
        "task": profile.task.value,
        "confidence": profile.confidence,
        "expected_output_tokens": profile.expected_output_tokens,
        "rare_token_share": profile.rare_token_share,
        "prompt_tokens": profile.prompt_tokens,
        "structured_output": profile.structured_output,
    }


def _of_forecast(forecast: Forecast) -> dict[str, Number]:
    tokens, acceptance, base = forecast.output_tokens, forecast.acceptance, forecast.step_base_s
    found: dict[str, Number] = {
        "load": forecast.load,
        "output_tokens": tokens.mean,
        "output_tokens_se": tokens.se,
        "output_tokens_samples": tokens.samples,
        "output_tokens_level": tokens.level.value,
    }
    if acceptance is not None:
        found["acceptance"] = acceptance.mean
        found["acceptance_se"] = acceptance.se
        found["acceptance_samples"] = acceptance.samples
        found["acceptance_level"] = acceptance.level.value
    found["plain_tpot_s"] = forecast.plain_tpot_s.mean
    found["plain_tpot_level"] = forecast.plain_tpot_s.level.value
    found["step_base_s"] = base.mean
    found["step_per_draft_token_s"] = forecast.step_per_draft_token_s.mean
    found["step_level"] = base.level.value
    if forecast.neighbours_step_s is not None:
        found["neighbours_step_s"] = forecast.neighbours_step_s.mean
        found["neighbours_draft_length"] = forecast.neighbours_draft_length
    return found


def _of_saving(case: Case, best: PredictedSaving, spec: SpeculationPolicySpec) -> dict[str, Number]:
    """In seconds; as a share of the plain answer's time before any answer was timed."""
    found: dict[str, Number] = {"best_draft_length": best.draft_length, "tokens_per_step": best.tokens_per_step}
    if case.is_timed:
        found |= {
            "speculative_tpot_s": best.speculative_tpot_s,
            "plain_s": best.plain_s,
            "speculative_s": best.speculative_s,
            "saving_s": best.saving_s,
            "margin_s": spec.margin * best.plain_s,
        }
    else:
        found |= {"saving_share": best.saving_s / best.plain_s, "margin_share": spec.margin}
    return found | {"decision": spec.decision, "confidence_asked": spec.confidence}


def _of_steps(case: Case) -> dict[str, Number]:
    """The figures of the steps that the decision took, which are pure: they are taken again."""
    found: dict[str, Number] = {}
    longest = draft_lengths(case.route, case.spec, case.rule)[1]
    if case.health.longest_draft is not None and case.health.longest_draft < longest:
        found["servers_longest_draft"] = case.health.longest_draft
    for step in STEPS:
        found |= _NUMBERS[step](case)
        choice = step(case)
        if choice is None:
            continue
        if choice.reason is Reason.UNKNOWN_CLASS and case.saving is not None:
            found |= _of_thresholds(case)
        if is_explorable(case, choice):
            found |= _of_cost(case)
            if case.spec is not None and break_even.may_explore(case):
                found["exploration_share"] = case.spec.exploration_share
        elif is_shareable(choice) and not break_even.shed(case, choice) and not is_not_reached(case, choice):
            found["hold_back_share"] = hold_back_share(case)
        return found
    return found


def _of_switches(case: Case) -> dict[str, Number]:
    if case.standing is None or guards.off(case.route) is not None:
        return {}
    return {"phase": case.standing.phase.value, "rollout_share": case.standing.share}


def _of_capabilities(case: Case) -> dict[str, Number]:
    missing = guards.missing_speculative(case) or case.missing_plain
    return {"unsupported": ", ".join(missing)} if missing else {}


def _of_client_mode(case: Case) -> dict[str, Number]:
    if case.request.mode is Mode.AUTO or case.spec is None:
        return {}
    return {"client_mode": case.request.mode.value, "allow_client_mode": case.spec.allow_client_mode}


def _of_class_rule(case: Case) -> dict[str, Number]:
    rule = case.rule
    disabled = case.standing is not None and case.standing.phase is Phase.DISABLED
    if rule is None or (disabled and rule.mode == "auto"):
        return {}
    return {"class_rule": f"{rule.name}: {rule.mode}"}


def _of_unknown_class(case: Case) -> dict[str, Number]:
    least = guards.least_confidence(case)
    return {} if least is None else {"min_confidence": least}


def _of_short_output(case: Case) -> dict[str, Number]:
    shortest = guards.least_output_tokens(case)
    return {} if shortest is None else {"min_output_tokens": shortest}


def _of_rare_tokens(case: Case) -> dict[str, Number]:
    rarest = guards.most_rare_tokens(case)
    return {} if rarest is None else {"max_rare_token_share": rarest}


def _of_hot_sampling(case: Case) -> dict[str, Number]:
    if case.spec is None:
        return {}
    return {"temperature": case.request.temperature, "max_temperature": case.spec.max_temperature}


def _of_long_context(case: Case) -> dict[str, Number]:
    return {} if case.spec is None else {"max_context_tokens": case.spec.max_context_tokens}


def _of_thresholds(case: Case) -> dict[str, Number]:
    found: dict[str, Number] = {}
    for step in guards.THRESHOLDS:
        found |= _NUMBERS[step](case)
        if step(case) is not None:
            break
    return found


def _of_by_saving(case: Case) -> dict[str, Number]:
    best, spec = case.saving, case.spec
    if best is None or spec is None:
        return {}
    counted_s = break_even.counted_saving_s(case, best)
    found: dict[str, Number] = {}
    if counted_s != best.saving_s:
        bound = "saving_lower_bound" if counted_s < best.saving_s else "saving_upper_bound"
        found |= {f"{bound}_s": counted_s} if case.is_timed else {f"{bound}_share": counted_s / best.plain_s}
    return found | _of_cost(case) if counted_s > spec.margin * best.plain_s else found


def _of_cost(case: Case) -> dict[str, Number]:
    increase = break_even.cost_increase(case)
    if increase is None or case.spec is None or case.spec.max_cost_increase is None:
        return {}
    return {"cost_increase": increase, "max_cost_increase": case.spec.max_cost_increase}


_NUMBERS: dict[Step, Callable[[Case], dict[str, Number]]] = {
    guards.switches: _of_switches,
    guards.capabilities: _of_capabilities,
    guards.client_mode: _of_client_mode,
    guards.class_rule: _of_class_rule,
    guards.unknown_class: _of_unknown_class,
    guards.short_output: _of_short_output,
    guards.rare_tokens: _of_rare_tokens,
    guards.hot_sampling: _of_hot_sampling,
    guards.long_context: _of_long_context,
    break_even.by_saving: _of_by_saving,
}
