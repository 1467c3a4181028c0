"""The figures behind a decision, computed on access, because most are never read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_core.manifest.objects import SpeculationPolicySpec
from slipstream_core.observation import Forecast
from slipstream_core.types import RequestProfile

from slipstream_gateway.decide.route.break_even import BreakEven
from slipstream_gateway.decide.route.case import Case, Number
from slipstream_gateway.decide.route.saving import se_s


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
                found |= _of_saving(case.saving, case.spec)
                found["saving_se_s"] = se_s(case.route, case.forecast, case.saving)
            if case.pressure > 0.0:
                found |= {"pressure": case.pressure, "longest_draft_length": case.longest}
            self._found = found | case.numbers
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
    found["plain_ttft_s"] = forecast.plain_ttft_s.mean
    found["speculative_ttft_s"] = forecast.speculative_ttft_s.mean
    if forecast.neighbours_step_s is not None:
        found["neighbours_step_s"] = forecast.neighbours_step_s.mean
        found["neighbours_draft_length"] = forecast.neighbours_draft_length
    return found


def _of_saving(best: BreakEven, spec: SpeculationPolicySpec) -> dict[str, Number]:
    return {
        "best_draft_length": best.draft_length,
        "tokens_per_step": best.tokens_per_step,
        "speculative_tpot_s": best.speculative_tpot_s,
        "plain_s": best.plain_s,
        "speculative_s": best.speculative_s,
        "saving_s": best.saving_s,
        "margin_s": spec.margin * best.plain_s,
        "decision": spec.decision,
        "confidence_asked": spec.confidence,
    }
