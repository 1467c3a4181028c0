"""Figures of speculation: acceptance (by position, too) and saved target steps; for charts, each request's saving and
the measured terms of the break-even."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from slipstream_core.types import Arm

from slipstream_tools.bench.cases import Case
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import PLAIN, ROUTED, BreakEven, Point, Position, Speculation


def speculation(rows: Sequence[Row]) -> Speculation | None:
    """Figures over the rows with draft tokens; None where there are none."""
    drafting = [row for row in rows if row.drafted > 0]
    if not drafting:
        return None
    drafted, accepted = sum(row.drafted for row in drafting), sum(row.accepted for row in drafting)
    stepped = [row for row in drafting if row.steps]
    steps = sum(row.steps or 0 for row in stepped)
    tokens = sum(_decoded(row) for row in stepped)
    return Speculation(
        drafted=drafted,
        accepted=accepted,
        rejected=drafted - accepted,
        acceptance=accepted / drafted,
        tokens_per_step=tokens / steps if steps else None,
        steps_saved=tokens - steps if steps else None,
        positions=positions(stepped),
    )


def positions(rows: Sequence[Row]) -> tuple[Position, ...]:
    """Acceptance by position, from steps and first rejections; empty where the servers report neither.

    A step reaches position i when nothing before i was rejected. The last step of an answer may draft fewer tokens than
    the others, which the counts do not show: its later positions would count as accepted. The surplus over the answer's
    own count of accepted tokens is therefore subtracted from the last positions.
    """
    reached: list[int] = []
    rejected: list[int] = []
    for row in rows:
        length = row.draft_length or 0
        if not row.rejected_at or row.steps is None or length == 0:
            continue
        alive = _full_lengths(row, length)
        for position in range(length):
            if position == len(reached):
                reached.append(0)
                rejected.append(0)
            refused = row.rejected_at[position] if position < len(row.rejected_at) else 0
            reached[position] += alive[position]
            rejected[position] += min(refused, alive[position])
    return tuple(
        Position(position=index, reached=count, accepted=count - lost, share=(count - lost) / count)
        for index, (count, lost) in enumerate(zip(reached, rejected, strict=True))
        if count
    )


def _full_lengths(row: Row, length: int) -> list[int]:
    """The number of steps of `row` that reached each position."""
    alive, reached = row.steps or 0, []
    for position in range(length):
        reached.append(alive)
        alive -= row.rejected_at[position] if position < len(row.rejected_at) else 0
    surplus = sum(reached) - sum(row.rejected_at[:length]) - row.accepted
    for position in reversed(range(length)):
        if surplus <= 0:
            break
        floor = row.rejected_at[position] if position < len(row.rejected_at) else 0
        taken = min(surplus, reached[position] - floor)
        reached[position] -= taken
        surplus -= taken
    return reached


def _decoded(row: Row) -> int:
    """Output tokens of decode steps: the first token belongs to the prompt."""
    return max(row.output_tokens - 1, 0)


def points_of(cases: Sequence[Case]) -> Iterator[Point]:
    """One point per request, load, draft and speculative mode, where plain answered too."""
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
    """Seconds per plain token, per speculative step, and of TTFT beyond plain's."""
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
