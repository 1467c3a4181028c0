"""What drafts came to: acceptance, by position too, and how many steps of the target they saved."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import Position, Speculation


def speculation(rows: Sequence[Row]) -> Speculation | None:
    """The figures over those of `rows` that drafted; None where none did."""
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

    A step reaches position i when nothing before i was rejected. The last step of an answer may draft fewer tokens
    than the others, which the counts do not tell, so that its later positions count as accepted; the surplus over the
    answer's own count of accepted tokens is taken off the last positions.
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
    """How many steps of `row` had a draft token at each position with nothing before it rejected."""
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
    """Output tokens that steps made: the first one comes with the prompt."""
    return max(row.output_tokens - 1, 0)
