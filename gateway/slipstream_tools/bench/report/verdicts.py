"""The top of the page: what to do per class and why, and the figures that a reader wants first."""

from __future__ import annotations

from slipstream_tools.bench.report.formats import interval, percent, ratio, seconds
from slipstream_tools.bench.report.frame import note, table
from slipstream_tools.bench.report.markup import Markup, join, tag
from slipstream_tools.bench.report.view import View
from slipstream_tools.bench.summary import BASELINE, ROUTED, Cell, Quality, Thresholds, Verdict

_BADGES = {"speculate": ("yes", "✓"), "do not": ("no", "✕"), "not enough data": ("unknown", "?")}


def headline(view: View) -> Markup:
    """Up to four tiles."""
    whole, oracle = view.whole, view.oracle
    if whole is None:
        return Markup("")
    best = ROUTED if ROUTED in whole.comparisons else view.speculative
    tiles = [_speed_tile(whole, best) if best else None, _tail_tile(whole, best) if best else None]
    if oracle is not None and oracle.captured is not None:
        first = f"{oracle.first_requests} requests"
        later = f"{percent(oracle.captured_warm)} after the first {first}"
        detail = f"over its first {first}" if oracle.captured_warm is None else later
        tiles.append(_tile(percent(oracle.captured, 0), "of the oracle's saving captured", detail))
    tiles.append(_parity_tile(whole))
    return tag("div", *(tile for tile in tiles if tile), class_="tiles")


def _tile(figure: str, name: str, detail: str) -> Markup:
    return tag("div", tag("b", figure), tag("span", name), tag("small", detail), class_="tile")


def _speed_tile(whole: Cell, mode: str) -> Markup | None:
    found = whole.comparisons[mode].speed_up if mode in whole.comparisons else None
    if found is None:
        return None
    return _tile(ratio(found.estimate), f"faster on average: {mode} over plain",
                 f"95 % interval {ratio(found.low)} to {ratio(found.high)}")  # fmt: skip


def _tail_tile(whole: Cell, mode: str) -> Markup | None:
    found = whole.comparisons[mode].p95_reduction if mode in whole.comparisons else None
    plain, other = whole.modes.get(BASELINE), whole.modes.get(mode)
    if found is None or plain is None or other is None or plain.e2e_s is None or other.e2e_s is None:
        return None
    word = "lower" if found.estimate >= 0 else "higher"
    detail = f"{seconds(plain.e2e_s.p95)} plain, {seconds(other.e2e_s.p95)} {mode}"
    return _tile(percent(abs(found.estimate), 0), f"{word} p95 of E2E: {mode}", detail)


def _parity_tile(whole: Cell) -> Markup | None:
    compared = sum(one.parity_compared for one in whole.comparisons.values())
    equal = sum(one.parity_equal for one in whole.comparisons.values())
    if not compared:
        return None
    return _tile(f"{equal} of {compared}", "greedy answers word for word the same", "in every mode, against plain")


def verdicts(view: View, thresholds: Thresholds) -> Markup:
    """One row per class."""
    if not view.verdicts:
        return note("No verdict: it needs the mode plain and one that speculates.")
    rules = tag(
        "p", f"The threshold, set before the run: p95 of E2E at least {percent(thresholds.p95_reduction, 0)} lower, "
        f"share of passed checks at most {percent(thresholds.quality_loss, 0)} lower, cost at most "
        f"{percent(thresholds.cost_increase, 0)} higher, and at least {thresholds.min_samples} requests.",
        class_="note",
    )  # fmt: skip
    head = tag("tr", *(tag("th", name, scope="col") for name in ("class", "verdict", "with", "why")))
    body = [tag("tr", *_cells(one)) for one in view.verdicts]
    made = tag("table", tag("caption", "Verdict per request class", class_="quiet"), tag("thead", head),
               tag("tbody", *body), class_="verdicts")  # fmt: skip
    return join(
        _outcome(view), rules, tag("div", made, class_="scroll", tabindex=0, role="region", aria_label="Verdicts")
    )


def _outcome(view: View) -> Markup:
    """The answer to the page's title in a sentence or two."""
    said = []
    for outcome, phrase in (
        ("speculate", "Speculate for"),
        ("do not", "Decode plainly:"),
        ("not enough data", "Not enough data yet:"),
    ):
        names = [one.request_class for one in view.verdicts if one.verdict == outcome]
        if names:
            said.append(f"{phrase} {', '.join(names)}.")
    return tag("p", " ".join(said), class_="outcome")


def _cells(one: Verdict) -> tuple[Markup, ...]:
    style, sign = _BADGES[one.verdict]
    badge = tag("span", tag("span", sign, aria_hidden="true"), f" {one.verdict}", class_=f"badge {style}")
    chosen = [text for text in (one.mode, one.draft) if text]
    if one.draft_length is not None:
        chosen.append(f"γ\u00a0{one.draft_length}")
    return (
        tag("th", one.request_class, scope="row"), tag("td", badge),
        tag("td", ", ".join(chosen) if one.verdict == "speculate" else ""), tag("td", one.reason),
    )  # fmt: skip


def quality(view: View) -> Markup:
    """Passed checks per mode, and greedy answers that are the same as plain's."""
    rows: list[tuple[str, ...]] = []
    first = 0
    for cell in view.by_class:
        first = first or len(rows)
        name = "all classes" if cell.request_class == "all" else cell.request_class
        for mode, figures in cell.modes.items():
            comparison = cell.comparisons.get(mode)
            same = f"{comparison.parity_equal} of {comparison.parity_compared}" if comparison else ""
            change = interval(comparison.quality, percent) if comparison else ""
            rows.append((name, mode, *_passed(figures.quality), change, same, str(figures.failed)))
    head = ("class", "mode", "checked", "passed", "against plain (95 %)", "same text (greedy)", "failed")
    whole = table(head, rows[: first or None], caption="All classes together", text_columns=2, fold=False)
    return join(whole, table(head, rows[first:], caption="Quality and parity by class", text_columns=2))


def _passed(found: Quality | None) -> tuple[str, str]:
    return ("0", "–") if found is None else (str(found.checked), percent(found.share))
