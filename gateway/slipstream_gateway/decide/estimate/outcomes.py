"""Validation of observations: clocks jump and servers miscount, and neither may affect the estimates."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_core.observation import Observation
from slipstream_core.types import LengthBin, TaskType

_MAX_TOKENS = 10_000_000
_MIN_SECONDS, _MAX_SECONDS = 1e-6, 100_000.0
_MAX_NAME = 512
_MAX_TEMPERATURE = 3
_CLASSES = frozenset(f"{task}/{length}" for task in TaskType for length in LengthBin)
_MAX_LOAD = 100_000.0
_MAX_PRICE = 1_000_000.0
_MAX_DRAFT_LENGTH = 1_000
# The once-per-answer overhead, such as the transfer of its first and last bytes, is not step time, and it dominates in
# an answer of few steps. An answer of this many steps counts a quarter of a very long one.
_SETTLING_STEPS = 8.0
_FIRST_TOKEN_STEPS = 2.5


class Pace(NamedTuple):
    """Seconds per step or per token, and the weight of the answer relative to a long one, in (0, 1]."""

    step_s: float
    weight: float


class Trials(NamedTuple):
    """Accepted draft tokens, and decided ones: accepted, or the first rejected of their step."""

    accepted: float
    decided: float


def is_plausible(seen: Observation) -> bool:
    """Whether estimates may learn from `seen`: finished, and every figure possible. NaN fails every comparison."""
    subject = seen.subject
    return (
        seen.status == "ok"
        and subject.cold_class in _CLASSES
        and seen.request_class in _CLASSES
        and 0 <= subject.temperature <= _MAX_TEMPERATURE
        and max(map(len, (subject.key, subject.pair, seen.pool))) <= _MAX_NAME
        and 1 <= seen.output_tokens <= _MAX_TOKENS
        and 0 <= seen.prompt_tokens <= _MAX_TOKENS
        and _MIN_SECONDS <= seen.e2e_s <= _MAX_SECONDS
        and (seen.ttft_s is None or _MIN_SECONDS <= seen.ttft_s <= seen.e2e_s)
        and 0 <= seen.accepted <= seen.drafted <= _MAX_TOKENS
        and 0 <= seen.rejections <= _MAX_TOKENS
        and 0 <= seen.steps <= _MAX_TOKENS
        and 0 <= seen.draft_length <= _MAX_DRAFT_LENGTH
        and 0.0 <= seen.batch_draft_length <= _MAX_DRAFT_LENGTH
        and 0.0 <= seen.load <= _MAX_LOAD
        and (seen.price_per_gpu_hour is None or 0.0 <= seen.price_per_gpu_hour <= _MAX_PRICE)
        and (seen.priced_s is None or 0.0 <= seen.priced_s <= _MAX_SECONDS)
    )


def pace_of(seen: Observation, first_s: float | None, *, by_step: bool) -> Pace | None:
    """The time per step (`by_step`) or per token after the first; None for an answer that is too short to measure.

    `first_s` is the mean time to first token, which is subtracted from an answer that was not streamed. None: no answer
    was streamed, and the first token counts as some steps.
    """
    units = seen.output_tokens - 1
    if by_step:
        units = seen.steps or max(units - seen.accepted, 1)
    if units < 1 or seen.output_tokens < 2:
        return None
    before_s = first_s if seen.ttft_s is None else seen.ttft_s
    guessed_s = seen.e2e_s * _FIRST_TOKEN_STEPS / (units + _FIRST_TOKEN_STEPS)
    decode_s = seen.e2e_s - (guessed_s if before_s is None else before_s)
    if decode_s <= 0.0:
        return None
    return Pace(decode_s / units, (units / (units + _SETTLING_STEPS)) ** 2)


def trials_of(seen: Observation) -> Trials | None:
    """The trials behind the acceptance rate; None if nothing was decided.

    A step with fewer draft tokens than requested (a look-up without a match) counts like one with a rejection, so that
    E tokens per step matches the observation. The last step of an answer may be short without that.
    """
    rejected = seen.rejections or min(seen.drafted - seen.accepted, seen.steps)
    short = seen.steps - 1 - seen.drafted / seen.draft_length if seen.draft_length else 0.0
    failures = min(rejected + max(short, 0.0), max(seen.steps, rejected))
    decided = seen.accepted + failures
    return Trials(seen.accepted, decided) if decided > 0 else None
