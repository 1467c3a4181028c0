"""Summarizes recorded rows. Pure: the same results, thresholds and prices give the same summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from slipstream_tools.bench.cases import Case, Prices, cases_of
from slipstream_tools.bench.cells import cells_of
from slipstream_tools.bench.oracle import oracle_of
from slipstream_tools.bench.results import Results
from slipstream_tools.bench.speculation import break_even_of, points_of
from slipstream_tools.bench.summary import ALL, PLAIN, Cell, Run, Summary, Thresholds, entries_of
from slipstream_tools.bench.verdict import verdicts_of

FEW_REQUESTS = 100
_SHOWN_CELLS = 4


def summarize(results: Results, *, thresholds: Thresholds, prices: Prices) -> Summary:
    """All figures of `results`."""
    settings = results.header.settings
    cases = cases_of(results.rows)
    cells = cells_of(cases, settings.modes, prices, seed=settings.seed)
    return Summary(
        run=_run(results, cases, prices),
        thresholds=thresholds,
        cells=cells,
        verdicts=verdicts_of(cells, thresholds),
        oracle=tuple(oracle_of(cases, settings.modes, seed=settings.seed)),
        break_even=tuple(break_even_of(cases, settings.modes)),
        points=tuple(points_of(cases, settings.modes)),
        warnings=tuple(_warnings(results, cells)),
    )


def _run(results: Results, cases: Sequence[Case], prices: Prices) -> Run:
    settings, rows = results.header.settings, results.rows
    same = ("system", "modes", "concurrency", "drafts", "rounds", "seed")
    return Run(
        source=settings.requests,
        model=", ".join(dict.fromkeys(str(row.request.get("model", "")) for row in rows)),
        requests=len({case.index for case in cases}),
        skipped_lines=results.header.skipped_lines,
        rows=len(rows),
        failed_rows=sum(row.error is not None for row in rows),
        sessions=results.sessions,
        prices=msgspec.structs.asdict(prices) if prices.known else {},
        **{name: getattr(settings, name) for name in same},
    )


def _warnings(results: Results, cells: Sequence[Cell]) -> Iterator[str]:
    few = [cell for cell in cells if cell.requests < FEW_REQUESTS]
    if few:
        shown = ", ".join(f"{cell.request_class}/{cell.length} {cell.requests}" for cell in few[:_SHOWN_CELLS])
        more = ", …" if len(few) > _SHOWN_CELLS else ""
        yield (
            f"{len(few)} of {len(cells)} cells have fewer than {FEW_REQUESTS} requests ({shown}{more}): "
            "their p95 and p99 are unreliable"
        )
    if PLAIN not in results.header.settings.modes:
        yield "the mode plain was not measured: there are no differences and no verdicts"
    if skipped := results.header.skipped_lines:
        yield f"{skipped} lines of the requests file were skipped"
    if failed := [row for row in results.rows if row.error is not None]:
        # Without the server's message, which may quote the prompt: reports are passed on.
        status = "no answer" if failed[0].status is None else f"status {failed[0].status}"
        first = f"the first: {failed[0].mode}, {status}"
        yield f"{len(failed)} of {len(results.rows)} answers failed and are left out; {first}"
    if results.sessions > 1:
        yield f"the run took {results.sessions} sessions: a restarted gateway learns anew"
    mismatches = [
        f"{entry.mode} {one.parity_compared - one.parity_equal} of {one.parity_compared}"
        for entry in entries_of(cell for cell in cells if cell.request_class == cell.length == ALL)
        if (one := entry.compared).parity_equal < one.parity_compared
    ]
    if mismatches:
        yield f"greedy answers differ from plain's: {', '.join(mismatches)}"
