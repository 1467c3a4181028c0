"""The page: one file with its style and script inside, that asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import shlex
from importlib.resources import files

from slipstream_tools.bench.report.acceptance import acceptance
from slipstream_tools.bench.report.break_even import break_even
from slipstream_tools.bench.report.cost import cost
from slipstream_tools.bench.report.forecast import forecast
from slipstream_tools.bench.report.frame import note, table
from slipstream_tools.bench.report.latency import latency
from slipstream_tools.bench.report.learning import learning
from slipstream_tools.bench.report.markup import Markup, join, tag
from slipstream_tools.bench.report.oracle import oracle
from slipstream_tools.bench.report.speed_up import speed_up
from slipstream_tools.bench.report.verdicts import headline, quality, verdicts
from slipstream_tools.bench.report.view import View, class_names, class_picker, legend
from slipstream_tools.bench.summary import Run, Summary

TITLE = "Does speculation pay here?"


def page(summary: Summary, shown: list[View]) -> str:
    """The whole document. Whatever is data is escaped, and a content security policy with the script's hash keeps
    anything else from running."""
    script, style = _asset("report.js"), _asset("report.css")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_hash(script)}'; img-src data:"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{TITLE} – {summary.run.model}"), tag("style", Markup(style)),
    )  # fmt: skip
    body = tag(
        "body",
        _header(summary.run), _bar(shown, summary), tag("main", _warnings(summary.warnings),
        *(_view(summary, view) for view in shown), _settings(summary.run)),
        tag("div", "", id="tip", role="status", aria_live="polite", hidden=True), tag("script", Markup(script)),
    )  # fmt: skip
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _header(run: Run) -> Markup:
    facts = (
        f"{run.model} on {run.system}", f"{run.requests} requests from {run.source}",
        f"{run.rounds} round{'s' if run.rounds > 1 else ''}", f"{run.rows} answers",
    )  # fmt: skip
    return tag("header", tag("h1", TITLE), tag("p", " · ".join(facts)))


def _bar(shown: list[View], summary: Summary) -> Markup:
    """What stays in sight: which comparison, which modes."""
    tabs = [
        tag("button", view.name, type="button", data_view=view.key, aria_pressed="true" if index == 0 else "false")
        for index, view in enumerate(shown)
    ]
    group = tag("div", *tabs, class_="tabs", role="group", aria_label="Comparison shown") if len(tabs) > 1 else None
    picker = class_picker(class_names(summary))
    return tag("nav", group, legend(summary.run.modes), picker, aria_label="What is shown")


def _warnings(warnings: tuple[str, ...]) -> Markup | None:
    if not warnings:
        return None
    items = tag("ul", *(tag("li", warning) for warning in warnings))
    heading = f"{len(warnings)} warning{'s' if len(warnings) > 1 else ''}"
    return tag("details", tag("summary", heading), items, class_="warnings", open=len(warnings) <= 4)


def _view(summary: Summary, view: View) -> Markup:
    sections = (
        ("Verdict", None, join(headline(view), verdicts(view, summary.thresholds))),
        ("Speed-up", "Mean E2E of plain over the mode's, from the same requests in both.", speed_up(view)),
        ("Routing", "What deciding per request came to, against deciding once for all.",
         join(oracle(view), learning(view))),
        ("Latency", "Each line says which share of answers was at least as fast. Pick a class above.", latency(view)),
        ("Break-even", "A request pays above the curve: long enough, and foreseen well enough.", break_even(view)),
        ("Forecast", "What the gateway expected before each request, against what came.", forecast(view)),
        ("Acceptance", "How much of what the draft proposed the target took.", acceptance(view)),
        ("Cost", None, cost(view, priced=bool(summary.run.prices))),
        ("Quality and parity", "Speculation must not change what is answered.", quality(view)),
    )  # fmt: skip
    made = [
        tag("section", tag("h2", name), tag("p", lead, class_="lead") if lead else None, body,
            id=f"{view.key}-{name.split()[0].lower()}")
        for name, lead, body in sections
    ]  # fmt: skip
    return tag("article", tag("p", view.name, class_="view-name"), *made, id=view.key, aria_label=view.name)


def _settings(run: Run) -> Markup:
    modes, concurrency = ",".join(run.modes), ",".join(str(one) for one in run.concurrency)
    prices = ", ".join(f"{arm} {price:g} per GPU-hour" for arm, price in run.prices.items()) or "none given"
    rows = [
        ("system", run.system), ("model", run.model), ("requests", f"{run.requests} from {run.source}"),
        ("lines skipped", str(run.skipped_lines)), ("modes", modes), ("concurrency", concurrency),
        ("drafts", ", ".join(run.drafts) or "as served"), ("rounds", str(run.rounds)), ("seed", str(run.seed)),
        ("answers", f"{run.rows}, {run.failed_rows} failed"), ("sessions", str(run.sessions)), ("prices", prices),
    ]  # fmt: skip
    explained = note(
        "Modes ran interleaved in random order with the same settings: request by request where one was in flight, "
        "in blocks of one mode under load. Differences are paired (same request, round and concurrency); intervals are "
        "95 % bootstrap percentile intervals; quantiles are "
        "values that occurred. Prompts and answers are not part of this page."
    )
    return tag(
        "section", tag("h2", "Settings, and how to run it again"),
        table(("setting", "value"), rows, caption="Settings of the run", text_columns=2, fold=False),
        tag("pre", tag("code", _command(run)), tabindex=0, aria_label="The command"), explained, id="settings",
    )  # fmt: skip


def _command(run: Run) -> str:
    """What ran, as far as the results tell: a manifest is named without its folder."""
    where = ("--url", run.system) if "://" in run.system else ("-f", run.system.rpartition("@")[0] or run.system)
    words = [
        "slipstream", "bench", *where, "--requests", run.source, "--modes", ",".join(run.modes),
        "--concurrency", ",".join(str(one) for one in run.concurrency),
        "--rounds", str(run.rounds), "--seed", str(run.seed),
    ]  # fmt: skip
    if run.drafts:
        words += ["--drafts", ",".join(run.drafts)]
    return shlex.join(words)
