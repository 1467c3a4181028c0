"""The page: one HTML file with its style, script and charts inside, which needs no network."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import count
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from slipstream_tools.bench.report.comparisons import cost, routing, speed_up
from slipstream_tools.bench.report.formats import interval, percent, ratio, seconds
from slipstream_tools.bench.report.latency import latency
from slipstream_tools.bench.report.speculation import acceptance, break_even, forecast
from slipstream_tools.bench.report.view import Block, Table, View, class_names, name_of, palette, views
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import PLAIN, ROUTED, ClassVerdict, Run, Summary

_BADGES = {"speculate": ("yes", "✓"), "do not": ("no", "✕"), "not enough data": ("unknown", "?")}


class Tile(NamedTuple):
    """A figure in large type."""

    figure: str
    name: str
    detail: str


def page(summary: Summary, rows: Sequence[Row]) -> str:
    """The whole document. Data is escaped, and a content security policy with the script's hash keeps anything else
    from running."""
    # StrictUndefined: a misspelled name in the template is an error, not a gap on the page.
    environment = Environment(
        loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    script = files(__package__).joinpath("report.js").read_text("utf-8")
    return environment.get_template("page.html").render(
        summary=summary,
        run=summary.run,
        views=[(view, headline(view), list(_sections(summary, view))) for view in views(summary, rows)],
        classes=class_names(summary),
        palette=palette(summary.run.modes),
        settings=_settings(summary.run),
        command=_command(summary.run),
        style=Markup(files(__package__).joinpath("report.css").read_text("utf-8")),  # nosec B704 # a file of ours
        script=Markup(script),  # nosec B704 # a file of ours
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        outcome=_outcome,
        verdicts=_verdicts,
        percent=percent,
        next_id=map("figure-{}".format, count()).__next__,
    )


def _sections(summary: Summary, view: View) -> Iterator[tuple[str, str, Iterable[Block]]]:
    """(heading, lead, parts) of each section below the verdict."""
    yield "Speed-up", "Mean E2E of plain divided by that of the mode, over the same requests.", [speed_up(view)]
    yield "Routing", "Deciding per request, compared with one fixed mode for all requests.", routing(view)
    lead = "Share of answers that were at least as fast. Choose a class above."
    yield "Latency", lead, latency(view)
    yield "Break-even", "Speculation pays above the curve: for long answers with high acceptance.", break_even(view)
    yield "Forecast", "The saving that the gateway predicted for each request, and the measured one.", [forecast(view)]
    yield "Acceptance", "The draft tokens that the target accepted.", [acceptance(view)]
    yield "Cost", "", cost(view, priced=bool(summary.run.prices))
    yield "Quality and parity", "Speculation must not change the answers.", _quality(view)


def headline(view: View) -> list[Tile]:
    """Up to four tiles."""
    whole, oracle = view.whole, view.oracle
    mode = ROUTED if whole and ROUTED in whole.comparisons else view.speculative
    if whole is None:
        return []
    tiles = []
    if mode and (compared := whole.comparisons.get(mode)):
        if found := compared.speed_up:
            tiles.append(Tile(ratio(found.estimate), f"faster on average: {mode} over plain",
                              f"95 % interval {ratio(found.low)} to {ratio(found.high)}"))  # fmt: skip
        plain, other = whole.modes[PLAIN].e2e_s, whole.modes[mode].e2e_s
        if (found := compared.p95_reduction) and plain and other:
            word = "lower" if found.estimate >= 0 else "higher"
            tiles.append(Tile(percent(abs(found.estimate), 0), f"{word} p95 of E2E: {mode}",
                              f"{seconds(plain.p95)} plain, {seconds(other.p95)} {mode}"))  # fmt: skip
    if oracle is not None and oracle.captured is not None:
        first = f"first {oracle.first_requests} requests"
        later = f"{percent(oracle.captured_warm)} after the {first}"
        detail = f"over its {first}" if oracle.captured_warm is None else later
        tiles.append(Tile(percent(oracle.captured, 0), "of the oracle's saving captured", detail))
    compared_answers = sum(one.parity_compared for one in whole.comparisons.values())
    equal = sum(one.parity_equal for one in whole.comparisons.values())
    if compared_answers:
        tiles.append(Tile(f"{equal} of {compared_answers}", "greedy answers with identical text",
                          "in every mode, against plain"))  # fmt: skip
    return tiles


def _outcome(verdicts: Sequence[ClassVerdict]) -> str:
    """The answer to the page's title in a sentence or two."""
    phrases = {
        "speculate": "Speculate for",
        "do not": "Decode plainly:",
        "not enough data": "Not enough data yet:",
    }
    names = {verdict: [one.request_class for one in verdicts if one.verdict == verdict] for verdict in phrases}
    return " ".join(f"{phrases[verdict]} {', '.join(found)}." for verdict, found in names.items() if found)


def _verdicts(verdicts: Sequence[ClassVerdict]) -> Table:
    rows = []
    for one in verdicts:
        style, sign = _BADGES[one.verdict]
        badge = Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>')
        length = None if one.draft_length is None else f"γ\u00a0{one.draft_length}"
        chosen = [text for text in (one.mode, one.draft, length) if text] if one.verdict == "speculate" else []
        rows.append((one.request_class, badge.format(style, sign, one.verdict), ", ".join(chosen), one.reason))
    return Table(("class", "verdict", "with", "why"), rows, "Verdict per request class", text_columns=4, fold=False)


def _quality(view: View) -> Iterator[Block]:
    """Passed checks per mode, and greedy answers with the same text as plain's."""
    head = ("class", "mode", "checked", "passed", "against plain (95 %)", "same text (greedy)", "failed")
    rows: list[tuple[str, ...]] = []
    for cell in view.by_class:
        for mode, figures in cell.modes.items():
            found, compared = figures.quality, cell.comparisons.get(mode)
            passed = (str(found.checked), percent(found.share)) if found else ("0", "–")
            change = interval(compared.quality, percent) if compared else ""
            same = f"{compared.parity_equal} of {compared.parity_compared}" if compared else ""
            rows.append((name_of(cell), mode, *passed, change, same, str(figures.failed)))
    first = len(view.modes)
    yield Table(head, rows[:first], "All classes together", text_columns=2, fold=False)
    yield Table(head, rows[first:], "Quality and parity by class", text_columns=2)


def _settings(run: Run) -> Table:
    """Every field of `run`, under its own name."""
    rows = [(name.replace("_", " "), _text(getattr(run, name))) for name in run.__struct_fields__]
    return Table(("setting", "value"), rows, "Settings of the run", text_columns=2, fold=False)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{arm} {price:g} per GPU-hour" for arm, price in value.items()) or "none given"
    return (", ".join(str(one) for one in value) or "as served") if isinstance(value, tuple) else str(value)


def _command(run: Run) -> str:
    """The command of the run. The results name a manifest without its folder."""
    where = ("--url", run.system) if "://" in run.system else ("-f", run.system.rpartition("@")[0] or run.system)
    words = [
        *("slipstream", "bench", *where, "--requests", run.source, "--modes", ",".join(run.modes)),
        *("--concurrency", ",".join(str(one) for one in run.concurrency)),
        *("--rounds", str(run.rounds), "--seed", str(run.seed)),
        *(("--drafts", ",".join(run.drafts)) if run.drafts else ()),
    ]
    return shlex.join(words)
