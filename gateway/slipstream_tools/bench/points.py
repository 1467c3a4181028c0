"""Each request's saving with what it follows from, and the measured terms of the break-even: for plots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from slipstream_core.types import Arm

from slipstream_tools.bench.cases import Case
from slipstream_tools.bench.modes import PLAIN, ROUTED
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.speculation import speculation
from slipstream_tools.bench.summary import BreakEven, Point


def points_of(cases: Sequence[Case]) -> Iterator[Point]:
    """One per request, load, draft and speculative mode that plain answered too."""
    groups: dict[tuple[int, int, str | None], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.index, case.concurrency, case.draft].append(case)
    for group in groups.values():
        rows: dict[str, list[Row]] = defaultdict(list)
        for case in group:
            for mode, row in case.rows.items():
                rows[mode].append(row)
        for mode in rows:
            if PLAIN in rows and mode not in (PLAIN, ROUTED):
                yield _point(group[0], mode, rows)


def _point(case: Case, mode: str, rows: dict[str, list[Row]]) -> Point:
    plain_s, speculative_s = _mean_e2e_s(rows[PLAIN]), _mean_e2e_s(rows[mode])
    routed = rows.get(ROUTED, [])
    predicted = [row.saving_ms / 1000 for row in routed if row.saving_ms is not None]
    drafts = speculation(rows[mode])
    return Point(
        index=case.index,
        mode=mode,
        concurrency=case.concurrency,
        draft=case.draft,
        request_class=case.request_class,
        length=case.length,
        output_tokens=sum(row.output_tokens for row in rows[PLAIN]) / len(rows[PLAIN]),
        acceptance=drafts.acceptance if drafts else None,
        tokens_per_step=drafts.tokens_per_step if drafts else None,
        plain_s=plain_s,
        speculative_s=speculative_s,
        routed_s=_mean_e2e_s(routed) if routed else None,
        saving_s=plain_s - speculative_s,
        predicted_saving_s=sum(predicted) / len(predicted) if predicted else None,
        speculated=sum(row.arm == Arm.SPECULATIVE for row in routed) / len(routed) if routed else None,
    )


def break_even_of(cases: Sequence[Case], modes: Sequence[str]) -> Iterator[BreakEven]:
    """The terms of each speculative mode at each load, where servers report their steps."""
    for draft, concurrency in dict.fromkeys((case.draft, case.concurrency) for case in cases):
        for mode in modes:
            if mode in (PLAIN, ROUTED):
                continue
            pairs = [
                (case.rows[PLAIN], case.rows[mode])
                for case in cases
                if (case.draft, case.concurrency) == (draft, concurrency)
                and PLAIN in case.rows
                and mode in case.rows
                and case.rows[mode].steps
            ]
            if (terms := _terms(pairs)) is not None:
                tpot_s, step_s, extra_s = terms
                yield BreakEven(
                    mode=mode,
                    concurrency=concurrency,
                    draft=draft,
                    draft_length=max(other.draft_length or 0 for _, other in pairs),
                    plain_tpot_s=tpot_s,
                    step_s=step_s,
                    extra_ttft_s=extra_s,
                )


def _terms(pairs: Sequence[tuple[Row, Row]]) -> tuple[float, float, float] | None:
    """Seconds per plain token, per speculative step, and to the first token beyond plain's."""
    timed = [(plain, other) for plain, other in pairs if plain.ttft_s is not None and other.ttft_s is not None]
    tokens = sum(max(plain.output_tokens - 1, 0) for plain, _ in timed)
    steps = sum(other.steps or 0 for _, other in timed)
    if not tokens or not steps:
        return None
    tpot_s = sum(_decode_s(plain) for plain, _ in timed) / tokens
    step_s = sum(_decode_s(other) for _, other in timed) / steps
    extra_s = sum((other.ttft_s or 0.0) - (plain.ttft_s or 0.0) for plain, other in timed) / len(timed)
    return tpot_s, step_s, extra_s


def _decode_s(row: Row) -> float:
    return (row.e2e_s or 0.0) - (row.ttft_s or 0.0)


def _mean_e2e_s(rows: Sequence[Row]) -> float:
    return sum(row.e2e_s or 0.0 for row in rows) / len(rows)
