"""Axes, text and the arithmetic behind the charts."""

from __future__ import annotations

import html
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_tools.bench import formats
from slipstream_tools.bench.report import write_report
from slipstream_tools.bench.report.comparisons import running, steps
from slipstream_tools.bench.report.speculation import needed_acceptance
from slipstream_tools.bench.report.vega import COUNT, axis
from slipstream_tools.bench.report.view import views
from slipstream_tools.bench.summary import BreakEven

from tests.gateway.bench.report.recorded_run import AGAIN, make_rows, make_summary


@given(st.floats(1e-6, 1e6), st.floats(1.2, 1e9))
def test_a_logarithmic_axis_has_few_round_labels_and_all_of_them_inside(low: float, factor: float) -> None:
    drawn = axis("x", "x", COUNT, domain=[low, low * factor], log=True)["axis"]["values"]
    assert all(low <= tick <= low * factor for tick in drawn)
    assert len(drawn) <= max(7, math.log10(factor) + 1)
    assert drawn == sorted(drawn)


def test_any_text_survives_as_text_and_as_an_attribute(tmp_path: Path) -> None:
    """Class names are cells of tables, options, and parts of the charts."""

    class Reader(HTMLParser):
        texts: ClassVar[set[str]] = set()
        labels: ClassVar[set[str]] = set()

        def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
            self.labels |= {(value or "").partition(", ")[0] for key, value in attrs if key == "aria-label"}

        def handle_data(self, data: str) -> None:
            self.texts.add(data)

    names = ("a & b", "<b>bold</b>", "{{ 7 * 7 }}", "\"quoted'", "]]> -->")
    rows = make_rows(classes=names, requests=50, modes=("plain", "speculative"))
    write_report(make_summary(rows), rows, tmp_path / "report.html", command=AGAIN)
    reader = Reader()
    reader.feed((tmp_path / "report.html").read_text())
    assert reader.texts >= set(names)
    assert reader.labels >= set(names)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0 s"), (0.0000853, "85.3 µs"), (0.00421, "4.21 ms"), (1.27, "1.27 s"), (-0.2, "−200 ms")],
)
def test_times_are_written_in_the_unit_that_fits(value: float | None, text: str) -> None:
    assert formats.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0.0, "0"), (1.234, "1.23"), (0.0001987, "0.000199")])
def test_money_is_written_out(value: float | None, text: str) -> None:
    assert formats.money(value) == text


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300).map(sorted))
def test_a_latency_curve_rises_to_all_answers_and_never_claims_too_many(values: list[float]) -> None:
    drawn = steps(values)
    assert drawn == sorted(drawn)
    assert drawn[-1] == (values[-1], 1.0)
    assert all(share <= np.mean(np.asarray(values) <= value) for value, share in drawn)


@given(
    plain=st.floats(0.001, 0.1), factor=st.floats(1.05, 4.0), extra=st.floats(0.0, 0.05),
    length=st.integers(1, 8), tokens=st.floats(1, 2000), saving=st.floats(0.0, 1.0),
)  # fmt: skip
def test_on_the_curve_the_saving_is_what_the_curve_says(
    plain: float, factor: float, extra: float, length: int, tokens: float, saving: float
) -> None:
    curve = BreakEven(
        mode="speculative", concurrency=1, draft=None, draft_length=length, plain_tpot_s=plain,
        step_s=plain * factor, extra_ttft_s=extra,
    )  # fmt: skip
    needed = needed_acceptance(curve, tokens, saving)
    if math.isinf(needed):
        assert tokens * plain <= extra + saving + 1e-12
    else:
        saved = tokens * (plain - plain * factor / (1 + needed * length)) - extra
        assert saved == pytest.approx(saving, abs=1e-6 * tokens)


@pytest.mark.parametrize("others", [("speculative",), ("speculative:2", "speculative")])
def test_the_running_sums_end_at_what_routing_and_the_oracle_saved(others: tuple[str, ...]) -> None:
    rows = make_rows(modes=("plain", *others, "routed"))
    summary = make_summary(rows)
    [view] = views(summary, rows)
    routed, oracle = running(view)[-1]
    [figures] = summary.oracle
    assert oracle == pytest.approx(figures.oracle_saving_s)
    assert routed / oracle == pytest.approx(figures.captured)


@pytest.mark.parametrize("modes", [("plain",), ("speculative",), ("plain", "routed"), ("speculative", "routed")])
def test_a_run_without_some_mode_still_has_a_page(modes: tuple[str, ...], tmp_path: Path) -> None:
    rows = make_rows(modes=modes)
    write_report(make_summary(rows, price=None), rows, tmp_path / "report.html", command=AGAIN)
    text = (tmp_path / "report.html").read_text()
    assert "No price per GPU-hour is known" in text
    assert "Settings, and how to run it again" in text


def test_a_run_in_which_everything_failed_still_has_a_page(tmp_path: Path) -> None:
    rows = make_rows(requests=4, error="refused: model is gone")
    write_report(make_summary(rows), rows, tmp_path / "report.html", command=AGAIN)
    page = (tmp_path / "report.html").read_text()
    assert "answers failed and are left out; the first: plain, " in page
    assert "refused: model is gone" not in page  # the server's own words may quote what was asked


def test_the_page_holds_no_prompt_and_names_no_address(tmp_path: Path) -> None:
    rows = make_rows(prompt="My secret is 4711-ABRAXAS")
    write_report(make_summary(rows), rows, tmp_path / "report.html", command=AGAIN)
    text = (tmp_path / "report.html").read_text()
    assert "ABRAXAS" not in text
    assert "http://" not in text
    assert "https://" not in text


def text_of(page: Path) -> str:
    """The words of a page, without its charts."""
    text = re.sub(r"<svg.*?</svg>|<script.*?</script>|<style.*?</style>", "", page.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def tiles_of(page: Path) -> list[tuple[str, str, str]]:
    return re.findall(
        r'<div class="tile"><b>(.*?)</b><span>(.*?)</span><small>(.*?)</small>', html.unescape(page.read_text())
    )


@pytest.mark.parametrize("requests", [40, 120])
def test_each_tile_has_the_figure_and_the_interval_of_the_tables(tmp_path: Path, requests: int) -> None:
    rows = make_rows(requests=requests)
    write_report(make_summary(rows), rows, tmp_path / "report.html", command=AGAIN)
    text, tiles = text_of(tmp_path / "report.html"), tiles_of(tmp_path / "report.html")
    names = [name.partition(":")[0] for _, name, _ in tiles]
    reliable = ["p95 reduction of E2E"] if requests >= 100 else []  # below, a p95 is one of five values
    assert names[:-2] == ["faster on average", *reliable]
    for figure, _, detail in tiles[:-2]:
        assert f"{figure} ({detail.removeprefix('95 % interval ')})" in text
    captured, name, _ = tiles[-2]
    assert f"{name} {captured}" in text
    faster, _, detail = tiles[0]
    assert f"mean E2E, plain ÷ routed {faster} ({detail.removeprefix('95 % interval ')})" in text


def test_few_requests_have_no_figure_in_large_type(tmp_path: Path) -> None:
    rows = make_rows(requests=10)
    write_report(make_summary(rows), rows, tmp_path / "report.html", command=AGAIN)
    [(figure, name, _)] = tiles_of(tmp_path / "report.html")
    assert (figure, name) == ("10 of 30", "requests: too few for a figure")
