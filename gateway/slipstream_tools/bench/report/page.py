"""The page: one HTML file with its style, script and charts inside, which needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from slipstream_tools.bench.formats import percent, ratio
from slipstream_tools.bench.report.comparisons import cost, heat_maps, latency, quality, routing, speed_up
from slipstream_tools.bench.report.speculation import acceptance, break_even, forecast
from slipstream_tools.bench.report.view import FEW, Block, View, palette, views
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import PLAIN, ROUTED, ClassVerdict, Comparison, Run, Summary
from slipstream_tools.bench.tables import Table

REPORT_FILE = "report.html"
# By verdict: the badge's style, its sign, and the phrase before the classes.
_VERDICTS = {
    "speculate": ("yes", "✓", "Speculate for"),
    "do not": ("no", "✕", "Decode plainly:"),
    "not enough data": ("unknown", "?", "Not enough data yet:"),
}


def write_report(summary: Summary, rows: Sequence[Row], path: Path, *, command: str) -> None:
    """Write the page for `summary` and the measured `rows` it was made of, in the order they ran; `command` runs the
    same again. Raises `OSError`.

    Data is escaped, and a content security policy with the script's hash keeps anything else from running.
    """
    # StrictUndefined: a misspelled name in the template is an error, not a gap on the page.
    environment = Environment(
        loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    script = files(__package__).joinpath("report.js").read_text("utf-8")
    text = environment.get_template("page.html").render(
        summary=summary,
        run=summary.run,
        heat_maps=heat_maps(summary.cells) if len(summary.run.concurrency) > 1 and len(summary.run.drafts) < 2 else [],
        views=[(view, list(headline(view)), list(_sections(view))) for view in views(summary, rows)],
        classes=list(dict.fromkeys(cell.name for cell in summary.cells if cell.length == "all")),
        palette=palette(summary.run.modes),
        settings=_settings(summary.run),
        command=command,
        style=Markup(files(__package__).joinpath("report.css").read_text("utf-8")),  # nosec B704 # a file of ours
        script=Markup(script),  # nosec B704 # a file of ours
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        outcome=_outcome,
        badges=_VERDICTS,
        percent=percent,
        next_id=map("figure-{}".format, count()).__next__,
    )
    path.write_text(text, encoding="utf-8")


def _sections(view: View) -> Iterator[tuple[str, str, Iterable[Block]]]:
    """(heading, lead, parts) of each section below the verdict."""
    yield "Speed-up", "Mean E2E of plain divided by that of the mode, over the same requests.", [speed_up(view)]
    yield "Routing", "Deciding per request, compared with one fixed mode for all requests.", routing(view)
    lead = "Share of answers that were at least as fast. Choose a class above."
    yield "Latency", lead, latency(view)
    yield "Break-even", "Speculation pays above the curve: for long answers with high acceptance.", break_even(view)
    yield "Forecast", "The saving that the gateway predicted for each request, and the measured one.", [forecast(view)]
    yield "Acceptance", "The draft tokens that the target accepted.", [acceptance(view)]
    yield "Cost", "", cost(view)
    yield "Quality and parity", "Speculation must not change the answers.", [quality(view)]


def headline(view: View) -> Iterator[tuple[str, str, str]]:
    """Up to four tiles: a figure in large type, its name, and a detail. The figures and intervals are those of the
    tables below. With few requests there are none: chance would decide what they say."""
    whole, oracle = view.whole, view.oracle
    mode = ROUTED if ROUTED in whole else str(view.speculative)
    compared = whole[mode].compared if mode in whole and PLAIN in whole else Comparison()
    if not compared.requests:
        return
    if compared.requests < (least := view.summary.thresholds.min_samples):
        yield (
            f"{compared.requests} of {least}",
            "requests: too few for a figure",
            "see the tables for what was measured",
        )
        return
    if found := compared.speed_up:
        yield (
            ratio(found.estimate),
            f"faster on average: {mode} over plain",
            f"95 % interval {ratio(found.low)} to {ratio(found.high)}",
        )
    if (found := compared.p95_reduction) and compared.requests >= FEW:
        yield (
            percent(found.estimate),
            f"p95 reduction of E2E: {mode}",
            f"95 % interval {percent(found.low)} to {percent(found.high)}",
        )
    if oracle is not None and oracle.captured is not None:
        first = f"first {oracle.first_requests} requests"
        later = f"{percent(oracle.captured_warm)} after the {first}"
        detail = f"over its {first}" if oracle.captured_warm is None else later
        yield percent(oracle.captured), "share of the oracle's saving, all requests", detail
    answers = sum(entry.compared.parity_compared for entry in whole.values())
    if answers:
        equal = sum(entry.compared.parity_equal for entry in whole.values())
        yield f"{equal} of {answers}", "greedy answers with identical text", "in every mode, against plain"


def _outcome(verdicts: Sequence[ClassVerdict]) -> str:
    """The answer to the page's title in a sentence or two."""
    names = {verdict: [one.request_class for one in verdicts if one.verdict == verdict] for verdict in _VERDICTS}
    return " ".join(f"{_VERDICTS[verdict][2]} {', '.join(found)}." for verdict, found in names.items() if found)


def _settings(run: Run) -> Table:
    """Every field of `run`, under its own name."""
    rows = [(name.replace("_", " "), _text(getattr(run, name))) for name in run.__struct_fields__]
    return Table(("setting", "value"), rows, "Settings of the run", text_columns=2, fold=False)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{arm} {price:g} per GPU-hour" for arm, price in value.items()) or "none given"
    return (", ".join(str(one) for one in value) or "as served") if isinstance(value, tuple) else str(value)
