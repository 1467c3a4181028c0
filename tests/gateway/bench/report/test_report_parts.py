"""Scales, markup and the arithmetic behind the plots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_tools.bench.report import formats, write_report
from slipstream_tools.bench.report.break_even import needed_acceptance
from slipstream_tools.bench.report.latency import quantile
from slipstream_tools.bench.report.learning import running
from slipstream_tools.bench.report.markup import number, tag
from slipstream_tools.bench.report.scales import linear, logarithmic, most, spread
from slipstream_tools.bench.report.view import views
from slipstream_tools.bench.summary import BreakEven

finite = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))
positive = st.floats(1e-6, 1e6)


@given(st.lists(finite, min_size=1, max_size=20))
def test_a_linear_scale_holds_all_values_in_order_between_its_ends(values: list[float]) -> None:
    scale = linear(values, 10.0, 110.0)
    places = [scale(value) for value in sorted(values)]
    assert places == sorted(places)
    assert places[0] >= 10.0 - 1e-6
    assert places[-1] <= 110.0 + 1e-6
    slack = 1e-8 * (scale.high - scale.low)  # far less than a pixel; what lies outside is drawn at the edge
    assert scale.low <= min(values) + slack
    assert scale.high >= max(values) - slack
    assert 2 <= len(scale.ticks) <= 14


@given(st.lists(positive, min_size=1, max_size=20))
def test_a_logarithmic_scale_holds_all_values_and_gives_equal_ratios_equal_room(values: list[float]) -> None:
    scale = logarithmic(values, 0.0, 100.0)
    assert scale.low <= min(values)
    assert scale.high >= max(values)
    middle = math.sqrt(scale.low * scale.high)
    assert scale(middle) == pytest.approx(50.0, abs=1e-6)
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)


def test_one_stray_value_does_not_set_the_range() -> None:
    low, high = most([*range(200), 1e9])
    assert low < 0
    assert 199 < high < 250


def test_values_outside_a_scale_are_drawn_at_its_edge() -> None:
    scale = linear([0.0, 10.0], 0.0, 100.0)
    assert scale(-5.0) == 0.0
    assert scale(1e9) == 100.0


@given(st.lists(st.floats(0, 500), min_size=1, max_size=12).map(sorted))
def test_spread_labels_keep_their_order_and_their_distance(places: list[float]) -> None:
    moved = spread(places, 12.0)
    assert all(after - before >= 12.0 - 1e-6 for before, after in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(places), abs=1e-6)
    held = spread(places, 12.0, least=100.0)
    assert held[0] >= 100.0
    assert all(after - before >= 12.0 - 1e-6 for before, after in itertools.pairwise(held))


@given(st.text(max_size=60))
def test_any_text_survives_as_text_and_as_an_attribute(text: str) -> None:
    class Reader(HTMLParser):
        tags: list[tuple[str, dict[str, str | None]]]
        data = ""

        def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append((name, dict(attrs)))

        def handle_data(self, data: str) -> None:
            self.data += data

    text = text.replace("\r", " ").replace("\0", " ")  # which HTML itself does not keep
    reader = Reader()
    reader.tags = []
    reader.feed(tag("p", text, data_tip=text))
    reader.close()
    assert reader.tags == [("p", {"data-tip": text})]
    assert reader.data == text


def test_coordinates_are_short() -> None:
    assert [number(value) for value in (1.0, 1.239, -0.001, 10.5)] == ["1", "1.24", "0", "10.5"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0 s"), (0.0000853, "85.3 µs"), (0.00421, "4.21 ms"), (1.27, "1.27 s"), (-0.2, "−200 ms")],
)
def test_times_are_written_in_the_unit_that_fits(value: float | None, text: str) -> None:
    assert formats.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0.0, "0"), (1.234, "1.23"), (0.0001987, "0.000199")])
def test_money_is_written_out(value: float | None, text: str) -> None:
    assert formats.money(value) == text


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantiles_are_those_of_the_summary(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == np.quantile(values, share, method="inverted_cdf")


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


def test_the_running_sums_end_at_what_routing_and_the_oracle_saved(
    make_rows: Callable[..., Any], make_summary: Callable[..., Any]
) -> None:
    rows = make_rows()
    summary = make_summary(rows)
    [view] = views(summary, rows)
    routed, oracle = running(view, "speculative")[-1]
    [figures] = summary.oracle
    assert oracle == pytest.approx(figures.oracle_saving_s)
    assert routed / oracle == pytest.approx(figures.captured)


@pytest.mark.parametrize("modes", [("plain",), ("speculative",), ("plain", "routed"), ("speculative", "routed")])
def test_a_run_without_some_mode_still_has_a_page(
    modes: tuple[str, ...], tmp_path: Path, make_rows: Callable[..., Any], make_summary: Callable[..., Any]
) -> None:
    rows = make_rows(modes=modes)
    write_report(make_summary(rows, price=None), rows, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "No price per GPU-hour is known" in text
    assert "Settings, and how to run it again" in text


def test_a_run_in_which_everything_failed_still_has_a_page(
    tmp_path: Path, make_rows: Callable[..., Any], make_summary: Callable[..., Any]
) -> None:
    rows = make_rows(requests=4, error="refused: model is gone")
    write_report(make_summary(rows), rows, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "answers failed and are left out; the first: plain, " in page
    assert "refused: model is gone" not in page  # the server's own words may quote what was asked


def test_the_page_holds_no_prompt_and_names_no_address(
    tmp_path: Path, make_rows: Callable[..., Any], make_summary: Callable[..., Any]
) -> None:
    rows = make_rows(prompt="My secret is 4711-ABRAXAS")
    write_report(make_summary(rows), rows, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "ABRAXAS" not in text
    assert "http://" not in text
    assert "https://" not in text
