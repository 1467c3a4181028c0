"""Figures of speculation: acceptance (by position, too) and saved target steps; for charts, each request's saving and
the measured terms of the break-even."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from slipstream_core.types import Arm

from slipstream_tools.bench.cases import Case, by_place
from slipstream_tools.bench.oracle import Known, known_times
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
    tokens = sum(max(row.output_tokens - 1, 0) for row in stepped)  # the first token belongs to the prompt
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
    totals: list[list[int]] = []
    for row in rows:
        length = row.draft_length or 0
        if not row.rejected_at or row.steps is None or length == 0:
            continue
        refused = [*row.rejected_at[:length], *[0] * (length - len(row.rejected_at))]
        totals += [[0, 0] for _ in range(length - len(totals))]
        for total, alive, lost in zip(totals, _reached(row, refused), refused, strict=False):
            total[0] += alive
            total[1] += alive - min(lost, alive)
    return tuple(
        Position(position=index, reached=reached, accepted=accepted, share=accepted / reached)
        for index, (reached, accepted) in enumerate(totals)
        if reached
    )


def _reached(row: Row, refused: Sequence[int]) -> list[int]:
    """The number of steps of `row` that reached each position."""
    reached = [(row.steps or 0) - sum(refused[:position]) for position in range(len(refused))]
    surplus = sum(reached) - sum(refused) - row.accepted
    for position in reversed(range(len(refused))):
        taken = min(max(surplus, 0), reached[position] - refused[position])
        reached[position] -= taken
        surplus -= taken
    return reached


def points_of(cases: Sequence[Case], modes: Sequence[str]) -> Iterator[Point]:
    """One point per request, load, draft and speculative mode, where plain answered too."""
    for members in by_place(cases).values():
        for known in known_times(members, modes).values():
            for mode in known.draft_lengths:
                yield _point(known, mode)


def _point(known: Known, mode: str) -> Point:
    case, routed = known.case, known.rows.get(ROUTED, ())
    predicted = [row.saving_ms / 1000 for row in routed if row.saving_ms is not None]
    drafts = speculation(known.rows[mode]) or Speculation()
    return Point(
        index=case.index,
        mode=mode,
        concurrency=case.concurrency,
        draft=case.draft,
        request_class=case.request_class,
        length=case.length,
        output_tokens=known.output_tokens,
        acceptance=drafts.acceptance,
        tokens_per_step=drafts.tokens_per_step,
        plain_s=known.plain_s,
        speculative_s=known.times_s[mode],
        routed_s=fmean(row.e2e_s or 0.0 for row in routed) if routed else None,
        saving_s=known.plain_s - known.times_s[mode],
        predicted_saving_s=fmean(predicted) if predicted else None,
        speculated=fmean(row.arm == Arm.SPECULATIVE for row in routed) if routed else None,
    )


def break_even_of(cases: Sequence[Case], modes: Sequence[str]) -> Iterator[BreakEven]:
    """The terms of each speculative mode at each load, where servers report their steps."""
    for (draft, concurrency), here in by_place(cases).items():
        for mode in modes:
            both = [(case.rows[PLAIN], case.rows[mode]) for case in here if PLAIN in case.rows and mode in case.rows]
            pairs = [
                (plain, other) for plain, other in both if other.steps and None not in (plain.ttft_s, other.ttft_s)
            ]
            tokens = sum(max(plain.output_tokens - 1, 0) for plain, _ in pairs)
            if mode in (PLAIN, ROUTED) or not tokens:
                continue
            yield BreakEven(
                mode=mode,
                concurrency=concurrency,
                draft=draft,
                draft_length=max(other.draft_length or 0 for _, other in pairs),
                plain_tpot_s=sum(_decode_s(plain) for plain, _ in pairs) / tokens,
                step_s=sum(_decode_s(other) for _, other in pairs) / sum(other.steps or 0 for _, other in pairs),
                extra_ttft_s=fmean((other.ttft_s or 0.0) - (plain.ttft_s or 0.0) for plain, other in pairs),
            )


def _decode_s(row: Row) -> float:
    return (row.e2e_s or 0.0) - (row.ttft_s or 0.0)
