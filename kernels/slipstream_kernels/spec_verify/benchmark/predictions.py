"""What the kernel cannot be faster than: the bytes that a case has to read, at a stated bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.spec_verify.benchmark.cases import Case

STATED_BANDWIDTH = 4.8e12
"""Bytes per second: an H200's data sheet. What a copy reaches is less, and is measured in each run."""
_LOGIT_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Bytes of logits, and microseconds at a bandwidth."""

    all_rows_bytes: float
    """Every row once."""
    needed_bytes: float
    """Rows up to the first rejection only, expected: those that the answer depends on."""
    all_rows_us: float
    needed_us: float


def predict(case: Case, bandwidth: float = STATED_BANDWIDTH) -> Prediction:
    """The floor of a case. A row costs V logits of 2 bytes; the rest, a few bytes per request, is left out."""
    row = case.vocabulary * _LOGIT_BYTES
    all_rows, needed = case.rows, sum(tokens_per_step(case.acceptance, length) for length in case.lengths)
    if case.has_draft_logits:
        all_rows += sum(case.lengths)
        needed += sum(_rows_of_draft(case.acceptance, length) for length in case.lengths)
    return Prediction(
        all_rows_bytes=all_rows * row,
        needed_bytes=needed * row,
        all_rows_us=all_rows * row / bandwidth * 1e6,
        needed_us=needed * row / bandwidth * 1e6,
    )


def needed_bytes(case: Case, accepted: list[int]) -> float:
    """The bytes that had to be read where request i had `accepted[i]` of its tokens accepted."""
    rows = sum(count + 1 for count in accepted)
    if case.has_draft_logits:
        rows += sum(min(count + 1, length) for count, length in zip(accepted, case.lengths, strict=True))
    return rows * case.vocabulary * _LOGIT_BYTES


def tokens_per_step(acceptance: float, draft_tokens: int) -> float:
    """E, the expected tokens of a step: sum of α^j over j = 0..γ. As many rows of the target have to be read."""
    return float(sum(acceptance**step for step in range(draft_tokens + 1)))


def _rows_of_draft(acceptance: float, draft_tokens: int) -> float:
    """Rows of the draft that have to be read: one per accepted token, and that of the rejected one."""
    return tokens_per_step(acceptance, draft_tokens - 1) if draft_tokens else 0.0
