"""What a run must show for exit code 0: `--expect` for CI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slipstream_core.errors import CommandError

from slipstream_tools.bench.modes import ROUTED
from slipstream_tools.bench.summary import ALL, Cell, Summary
from slipstream_tools.bench.verdict import DO_NOT, NOT_ENOUGH, SPECULATE

NOT_HARMED, POLICY = "not-harmed", "policy"
HARM = 0.02
"""A class is harmed where routed's mean E2E lies more than this share above plain's, and certainly above it at all."""
_VERDICTS = {"speculate": SPECULATE, "do-not": DO_NOT, "not-enough-data": NOT_ENOUGH}


def check_expectation(text: str) -> str:
    """`text` as it is, where it is an expectation. Raises `CommandError`."""
    name, _, verdict = text.rpartition("=")
    if text in (NOT_HARMED, POLICY) or (name and verdict in _VERDICTS):
        return text
    raise CommandError(
        f"--expect is {NOT_HARMED}, {POLICY} or CLASS=VERDICT with a verdict of {', '.join(_VERDICTS)}, got {text!r}",
        exit_code=2,
    )


def unmet(summary: Summary, expectations: Sequence[str]) -> list[str]:
    """One sentence for everything that was expected and is not so."""
    found: list[str] = []
    for text in expectations:
        if text == NOT_HARMED:
            found += _harmed(summary)
        elif text == POLICY:
            found += _against_policy(summary)
        else:
            found += _other_verdict(summary, *text.rpartition("=")[::2])
    return found


def _harmed(summary: Summary) -> Iterator[str]:
    """Classes, and all together, that routed makes slower than plain."""
    compared = [(cell, cell.comparisons[ROUTED]) for cell in _by_class(summary) if ROUTED in cell.comparisons]
    if not compared:
        yield f"{NOT_HARMED}: the modes plain and routed were not both measured"
    for cell, comparison in compared:
        speed_up = comparison.speed_up
        if speed_up is not None and 1 / speed_up.estimate > 1 + HARM and speed_up.high < 1:
            yield (
                f"{NOT_HARMED}: routed takes {1 / speed_up.estimate - 1:.1%} longer than plain in the class "
                f"{cell.request_class} at concurrency {cell.concurrency}"
            )


def _against_policy(summary: Summary) -> Iterator[str]:
    """Classes that routed mostly speculates although they should not."""
    routed = {
        (cell.draft, cell.concurrency, cell.request_class): cell.modes[ROUTED]
        for cell in _by_class(summary)
        if ROUTED in cell.modes
    }
    if not routed:
        yield f"{POLICY}: the mode routed was not measured"
    for one in summary.verdicts:
        figures = routed.get((one.draft, one.concurrency, one.request_class))
        if figures and (figures.speculated_share or 0.0) > 0.5 and one.verdict == DO_NOT:
            yield (
                f"{POLICY}: {figures.speculated_share:.0%} of the class {one.request_class} speculate at concurrency "
                f"{one.concurrency}, and should not: {one.reason}"
            )


def _other_verdict(summary: Summary, name: str, wanted: str) -> Iterator[str]:
    verdicts = [one for one in summary.verdicts if one.request_class == name]
    if not verdicts:
        yield f"{name}={wanted}: the class has no verdict"
    for one in verdicts:
        if one.verdict != _VERDICTS[wanted]:
            yield f"{name}={wanted}: at concurrency {one.concurrency} it is '{one.verdict}': {one.reason}"


def _by_class(summary: Summary) -> Iterator[Cell]:
    return (cell for cell in summary.cells if cell.length == ALL)
