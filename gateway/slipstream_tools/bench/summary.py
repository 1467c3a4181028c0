"""`summary.json`: the figures of a comparison of modes, from which the terminal's table and `report.html` are made.

Times are seconds, lengths tokens, shares lie in [0, 1], money is in the currency of the price. A quantity that was
not measured is None, never 0. Every difference is paired: the same request, round, concurrency and draft, `mode`
against plain; a positive latency difference means that `mode` is slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from slipstream_core.errors import CommandError

from slipstream_tools.bench.arrivals import Load

SUMMARY_FILE = "summary.json"
PLAIN, SPECULATIVE, ROUTED = "plain", "speculative", "routed"
ALL = "all"
"""The class or the length of a cell over all of them."""
LENGTHS = ("short", "medium", "long")
"""Length bins by the plain answer's output tokens: ≤ 40, ≤ 128, more."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate with its 95 % bootstrap percentile interval."""

    estimate: float
    low: float
    high: float


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of one mode over `n` answers. Quantiles are values that occurred (inverted distribution)."""

    n: int
    mean: float
    p50: float
    p95: float
    p99: float


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance of the draft token at `position` (0 is the first) where all before it were accepted: of the `reached`
    steps, `accepted` accepted it."""

    position: int
    reached: int
    accepted: int
    share: float


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """Draft tokens of one mode in one cell, over answers that have any.

    `acceptance` is α = accepted / drafted. `tokens_per_step` and `steps_saved` (output tokens less target steps) are
    None where the servers report no steps.
    """

    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    acceptance: float | None = None
    tokens_per_step: float | None = None
    steps_saved: int | None = None
    positions: tuple[Position, ...] = ()


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Passed answers of those with checks, and the mean score of each kind of check."""

    checked: int
    passed: int
    share: float
    scores: dict[str, float] = {}


class ModeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One mode in one cell. `failed` answers (refused, timed out, not in the requested mode) are in no other figure.

    `speculated_share` is the share of answers that the speculative arm gave. `throughput_tokens_per_s` is output tokens
    per second of the time with requests of this mode in flight; only in cells of class `all` and length `all`.
    """

    answered: int
    failed: int
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None
    output_tokens: Distribution | None
    speculated_share: float | None
    speculation: Speculation | None
    cost_per_response: float | None
    cost_per_1000_tokens: float | None
    quality: Quality | None
    throughput_tokens_per_s: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One mode against plain in one cell, over `pairs` answered by both, of `requests` distinct requests.

    `ttft_s`, `tpot_s`, `e2e_s` are mean paired differences, mode − plain. `speed_up` is mean E2E of plain over mode's,
    above 1 where the mode is faster. `p95_reduction` is 1 − p95(mode) / p95(plain) of E2E. `cost_increase` is
    cost(mode) / cost(plain) − 1, at equal prices where none is known. `quality` is the difference of the shares of
    passed checks. `parity_equal` of `parity_compared` greedy answers have the same text.
    """

    pairs: int = 0
    requests: int = 0
    ttft_s: Interval | None = None
    tpot_s: Interval | None = None
    e2e_s: Interval | None = None
    speed_up: Interval | None = None
    p95_reduction: Interval | None = None
    cost_increase: Interval | None = None
    quality: Interval | None = None
    faster_share: float | None = None
    parity_compared: int = 0
    parity_equal: int = 0

    @property
    def rank(self) -> float:
        """The speed-up for sorting; 0 where it is unknown."""
        return self.speed_up.estimate if self.speed_up else 0.0


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One request class (or `all`) × length bin (or `all`) at one concurrency and with one draft (None: as served).

    `modes` and `comparisons` are by mode, in the order of the run; plain has no comparison. `requests` counts distinct
    requests.
    """

    request_class: str
    length: str
    concurrency: Load
    draft: str | None
    requests: int
    modes: dict[str, ModeFigures]
    comparisons: dict[str, Comparison]

    @property
    def name(self) -> str:
        """The class, and the length where it has one."""
        name = "all classes" if self.request_class == ALL else self.request_class
        return name if self.length == ALL else f"{name}, {self.length}"


class Entry(NamedTuple):
    """One mode in one cell: what tables and plots are made of."""

    cell: Cell
    mode: str
    figures: ModeFigures

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def compared(self) -> Comparison:
        """Against plain; empty for plain itself."""
        return self.cell.comparisons.get(self.mode) or Comparison()

    @property
    def drafts(self) -> Speculation:
        """Empty where nothing was drafted."""
        return self.figures.speculation or Speculation()

    @property
    def parity(self) -> str:
        """Greedy answers with plain's text, of those compared."""
        one = self.compared
        return f"{one.parity_equal} of {one.parity_compared}" if one.parity_compared else ""


def entries_of(cells: Iterable[Cell]) -> list[Entry]:
    """One entry per cell and mode."""
    return [Entry(cell, mode, figures) for cell in cells for mode, figures in cell.modes.items()]


def distinct(cells: Iterable[Cell]) -> Iterator[Cell]:
    """The cells without those of a class's only length, which has the same figures as all of its lengths."""
    kept = tuple(cells)
    bins = [cell.request_class for cell in kept if cell.length != ALL]
    return (cell for cell in kept if cell.length == ALL or bins.count(cell.request_class) > 1)


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements for speculation in a class, over at least `min_samples` distinct requests."""

    p95_reduction: float = 0.2
    quality_loss: float = 0.0
    cost_increase: float = 0.05
    min_samples: int = 30


Judgement = Literal["speculate", "do not", "not enough data"]


class ClassVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a class should speculate at a concurrency, by the best of the speculative modes: `mode`, with `draft` and
    `draft_length` where one was chosen. `reason` is one sentence with the numbers."""

    request_class: str
    concurrency: Load
    mode: str | None
    draft: str | None
    draft_length: int | None
    verdict: Judgement
    reason: str
    pairs: int


class Worst(msgspec.Struct, frozen=True, kw_only=True):
    """The class with the highest E2E of routed relative to plain's, minus 1: positive where routed is slower."""

    request_class: str
    slow_down: Interval
    pairs: int


class LengthFit(msgspec.Struct, frozen=True, kw_only=True):
    """Precision and recall of the length bin that routing expected, against the plain answer's."""

    length: str
    precision: float | None
    recall: float | None
    predicted: int
    actual: int


class OracleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`routed` against an oracle that knows the fastest recorded mode of each request (mean over the rounds).

    `first` covers the first `first_requests` routed requests in the order they ran, `warm` those after them, and
    `captured` all: Σ(plain − routed) / Σ(plain − oracle), None where the oracle saves nothing. `captured_by_choice` is
    the same with the recorded time of the chosen arm in place of routed's own, which removes the noise of a third
    measurement. `rank_correlation` is Spearman's, of the predicted saving with plain − speculative.
    """

    concurrency: Load
    draft: str | None
    requests: int
    first_requests: int
    oracle_saving_s: float
    captured: float | None
    captured_first: float | None
    captured_warm: float | None
    captured_by_choice: float | None
    plain_over_routed: Interval | None
    speculative_over_routed: Interval | None
    worst_class: Worst | None
    rank_correlation: float | None
    rank_correlation_warm: float | None
    lengths: tuple[LengthFit, ...] = ()
    lengths_warm: tuple[LengthFit, ...] = ()


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of the break-even curve of one speculative mode: the measured mean time per token when plain, per
    step when speculative, and the extra time to the first token. A request of L tokens breaks even where
    L · (plain_tpot_s − step_s / E) = extra_ttft_s, with E tokens per step."""

    mode: str
    concurrency: Load
    draft: str | None
    draft_length: int
    plain_tpot_s: float
    step_s: float
    extra_ttft_s: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a speculative mode against plain, means over the rounds. `saving_s` is plain − speculative E2E,
    `predicted_saving_s` the gateway's forecast in routed mode, `speculated` whether routed speculated (share)."""

    index: int
    mode: str
    concurrency: Load
    draft: str | None
    request_class: str
    length: str
    output_tokens: float
    acceptance: float | None
    tokens_per_step: float | None
    plain_s: float
    speculative_s: float
    routed_s: float | None
    saving_s: float
    predicted_saving_s: float | None
    speculated: float | None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the run. `source` names the requests, `system` the servers. `sessions` is above 1 where the run
    was interrupted and continued. `prices` are per GPU-hour, by arm; empty where unknown."""

    source: str
    system: str
    model: str
    modes: tuple[str, ...]
    concurrency: tuple[Load, ...]
    drafts: tuple[str, ...]
    rounds: int
    seed: int
    requests: int
    skipped_lines: int
    rows: int
    failed_rows: int
    sessions: int
    prices: dict[str, float] = {}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole summary. `cells` are ordered by draft, concurrency, class (`all` first) and length (`all` first)."""

    object: Literal["slipstream.summary"] = "slipstream.summary"
    version: Literal[1] = 1
    run: Run
    thresholds: Thresholds
    cells: tuple[Cell, ...]
    verdicts: tuple[ClassVerdict, ...]
    oracle: tuple[OracleFigures, ...]
    break_even: tuple[BreakEven, ...]
    points: tuple[Point, ...]
    warnings: tuple[str, ...]

    def parts(self) -> Iterator[tuple[str | None, Load, Summary]]:
        """Draft, concurrency and the part of the summary that belongs to them, in the order of `cells`."""
        for place in dict.fromkeys((cell.draft, cell.concurrency) for cell in self.cells):
            kept: dict[str, Any] = {
                field: tuple(one for one in getattr(self, field) if (one.draft, one.concurrency) == place)
                for field in ("cells", "oracle", "break_even", "points")
            }
            verdicts = tuple(one for one in self.verdicts if one.concurrency == place[1])
            yield *place, msgspec.structs.replace(self, verdicts=verdicts, **kept)


def write_summary(summary: Summary, path: Path) -> None:
    """Write `summary` as indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")


def read_summary(path: Path) -> Summary:
    """The summary at `path`. Raises `CommandError` where it cannot be read or is not a summary."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror or error}", exit_code=2) from error
    except msgspec.DecodeError as error:
        raise CommandError(f"{path}: not a summary of slipstream bench: {error}", exit_code=2) from error
