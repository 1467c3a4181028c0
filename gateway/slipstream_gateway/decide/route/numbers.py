"""The figures behind a decision, computed on access, because most are never read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_core.observation import Forecast
from slipstream_core.types import Mode

from slipstream_gateway.decide.route import break_even, guards
from slipstream_gateway.decide.route.case import Case, Number, draft_lengths
from slipstream_gateway.decide.route.predicted_saving import PredictedSaving
from slipstream_gateway.decide.route.steps import hold_back_share


class Numbers(Mapping[str, Number]):
    """The numbers of a case, by stable names: the classifier's, the forecast, the saving, and the limits that apply."""

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
            case, found = self._case, _of_request(self._case)
            if case.forecast is not None and case.saving is not None:
                found |= _of_forecast(case.forecast) | _of_saving(case, case.saving)
            if case.route.policy is not None:
                found |= _of_policy(case)
            self._found = {name: value for name, value in found.items() if value is not None}
        return self._found


def _of_request(case: Case) -> dict[str, Number | None]:
    profile, standing = case.profile, case.standing
    asked, accepted = draft_lengths(case.route, case.spec, case.rule)[1], case.health.longest_draft
    missing = guards.missing_speculative(case) or case.missing_plain
    return {
        "task": profile.task.value,
        "confidence": profile.confidence,
        "expected_output_tokens": profile.expected_output_tokens,
        "rare_token_share": profile.rare_token_share,
        "prompt_tokens": profile.prompt_tokens,
        "structured_output": profile.structured_output,
        "pressure": case.pressure or None,
        "longest_draft_length": case.longest if case.pressure else None,
        "servers_longest_draft": accepted if accepted is not None and accepted < asked else None,
        "phase": standing.phase.value if standing is not None else None,
        "rollout_share": standing.share if standing is not None else None,
        "unsupported": ", ".join(missing) or None,
    }


def _of_forecast(forecast: Forecast) -> dict[str, Number | None]:
    tokens, acceptance, neighbours = forecast.output_tokens, forecast.acceptance, forecast.neighbours_step_s
    found: dict[str, Number | None] = {
        "load": forecast.load,
        "output_tokens": tokens.mean,
        "output_tokens_se": tokens.se,
        "output_tokens_samples": tokens.samples,
        "output_tokens_level": tokens.level.value,
        "plain_tpot_s": forecast.plain_tpot_s.mean,
        "plain_tpot_level": forecast.plain_tpot_s.level.value,
        "step_base_s": forecast.step_base_s.mean,
        "step_per_draft_token_s": forecast.step_per_draft_token_s.mean,
        "step_level": forecast.step_base_s.level.value,
    }
    if acceptance is not None:
        found |= {
            "acceptance": acceptance.mean,
            "acceptance_se": acceptance.se,
            "acceptance_samples": acceptance.samples,
            "acceptance_level": acceptance.level.value,
        }
    if neighbours is not None:
        found |= {
            "neighbours_step_s": neighbours.mean,
            "neighbours_draft_length": forecast.neighbours_draft_length,
        }
    return found


def _of_saving(case: Case, best: PredictedSaving) -> dict[str, Number | None]:
    """In seconds; as a share of the plain answer's time before any answer was timed."""
    counted_s, spec = break_even.counted_saving_s(case, best), case.spec
    bound = "saving_lower_bound" if counted_s < best.saving_s else "saving_upper_bound"
    found: dict[str, Number | None] = {
        "best_draft_length": best.draft_length,
        "tokens_per_step": best.tokens_per_step,
        "decision": spec.decision,
        "confidence_asked": spec.confidence,
        "cost_increase": break_even.cost_increase(case),
        "max_cost_increase": spec.max_cost_increase,
        "exploration_share": spec.exploration_share if break_even.may_explore(case) else None,
    }
    if not case.is_timed:
        found |= {"saving_share": best.saving_s / best.plain_s, "margin_share": spec.margin}
        return found | ({f"{bound}_share": counted_s / best.plain_s} if counted_s != best.saving_s else {})
    found |= {
        "speculative_tpot_s": best.speculative_tpot_s,
        "plain_s": best.plain_s,
        "speculative_s": best.speculative_s,
        "saving_s": best.saving_s,
        "margin_s": spec.margin * best.plain_s,
        "saving_se_s": break_even.se_s(case),
    }
    return found | ({f"{bound}_s": counted_s} if counted_s != best.saving_s else {})


def _of_policy(case: Case) -> dict[str, Number | None]:
    spec, rule, mode = case.spec, case.rule, case.request.mode
    return {
        "client_mode": mode.value if mode is not Mode.AUTO else None,
        "allow_client_mode": spec.allow_client_mode if mode is not Mode.AUTO else None,
        "class_rule": f"{rule.name}: {rule.mode}" if rule is not None else None,
        "min_confidence": guards.least_confidence(case),
        "min_output_tokens": guards.least_output_tokens(case),
        "max_rare_token_share": guards.most_rare_tokens(case),
        "temperature": case.request.temperature,
        "max_temperature": spec.max_temperature,
        "max_context_tokens": spec.max_context_tokens,
        "hold_back_share": hold_back_share(case),
    }
