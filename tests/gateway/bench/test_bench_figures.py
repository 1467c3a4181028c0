"""Figures of made-up results whose answers are known by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slipstream_tools.bench.cases import Prices
from slipstream_tools.bench.results import Results, Row
from slipstream_tools.bench.speculation import positions
from slipstream_tools.bench.summarize import summarize
from slipstream_tools.bench.summary import Cell, OracleFigures, Summary, Thresholds

from tests.gateway.bench.rows import results, row

Rows = Callable[..., Row]


def summed(results: Results, prices: Prices | None = None) -> Summary:
    return summarize(results, thresholds=Thresholds(), prices=prices or Prices())


def cell(summary: Summary, request_class: str = "all", length: str = "all", concurrency: int = 1) -> Cell:
    [found] = [
        one
        for one in summary.cells
        if (one.request_class, one.length, one.concurrency) == (request_class, length, concurrency)
    ]
    return found


def test_cells_are_by_class_and_by_the_plain_answers_length() -> None:
    lengths = {0: 40, 1: 41, 2: 128, 3: 129}
    rows = [row(index, "plain", output_tokens=count, label="a") for index, count in lengths.items()]
    rows += [row(index, "speculative", output_tokens=7, label="a") for index in lengths]
    rows += [row(4, mode, output_tokens=10, request_class="code/short") for mode in ("speculative", "plain")]
    found = {(one.request_class, one.length): one.requests for one in summed(results(rows)).cells}
    assert found == {
        ("all", "all"): 5, ("all", "short"): 2, ("all", "medium"): 2, ("all", "long"): 1,
        ("a", "all"): 4, ("a", "short"): 1, ("a", "medium"): 2, ("a", "long"): 1,
        ("code", "all"): 1, ("code", "short"): 1,
    }  # fmt: skip


def test_differences_are_paired_and_failures_are_left_out() -> None:
    rows = [row(0, "plain", e2e_s=1.0), row(0, "speculative", e2e_s=0.5)]
    rows += [row(1, "plain", e2e_s=3.0), row(1, "speculative", e2e_s=3.5, text_hash="other")]
    rows += [row(2, "plain", e2e_s=9.0), row(2, "speculative", error="timeout", e2e_s=None)]
    whole = cell(summed(results(rows)))
    compared = whole.comparisons["speculative"]
    assert (whole.modes["plain"].answered, whole.modes["speculative"].failed, compared.pairs) == (3, 1, 2)
    assert compared.e2e_s is not None
    assert compared.speed_up is not None
    assert (compared.e2e_s.estimate, compared.speed_up.estimate, compared.faster_share) == (0.0, 1.0, 0.5)
    assert (compared.parity_equal, compared.parity_compared) == (1, 2)
    assert (compared.e2e_s.low, compared.e2e_s.high) == (-0.5, 0.5)


def test_sampled_answers_are_not_compared_for_parity() -> None:
    hot = {"model": "m", "prompt": "x", "temperature": 0.7}
    rows = [row(0, "plain", request=hot), row(0, "speculative", request=hot, text_hash="other")]
    summary = summed(results(rows))
    assert cell(summary).comparisons["speculative"].parity_compared == 0
    assert not any("differ from plain's" in warning for warning in summary.warnings)


def test_an_answer_is_charged_its_share_of_the_servers_time() -> None:
    fields: dict[str, Any] = {"concurrency": 4, "e2e_s": 8.0, "output_tokens": 500}
    rows = [row(index, mode, **fields) for index in range(2) for mode in ("plain", "speculative")]
    modes = cell(summed(results(rows), Prices(plain=3600.0, speculative=7200.0)), concurrency=4).modes
    assert modes["plain"].cost_per_response == pytest.approx(2.0)
    assert modes["plain"].cost_per_1000_tokens == pytest.approx(4.0)
    assert modes["speculative"].cost_per_response == pytest.approx(4.0)
    compared = cell(summed(results(rows), Prices(plain=3600.0, speculative=7200.0)), concurrency=4).comparisons
    assert compared["speculative"].cost_increase is not None
    assert compared["speculative"].cost_increase.estimate == pytest.approx(1.0)
    assert cell(summed(results(rows)), concurrency=4).modes["plain"].cost_per_response is None


def test_throughput_counts_the_time_with_requests_in_flight() -> None:
    spans = [(0.0, 4.0), (1.0, 2.0), (10.0, 2.0)]  # start and duration: 6 s in all
    rows = [
        row(index, "plain", started_s=start, e2e_s=duration, output_tokens=100)
        for index, (start, duration) in enumerate(spans)
    ]
    assert cell(summed(results(rows))).modes["plain"].throughput_tokens_per_s == pytest.approx(50.0)


def test_drafts_are_added_up() -> None:
    fields: dict[str, Any] = {"drafted": 40, "accepted": 30, "steps": 10, "output_tokens": 41, "draft_length": 4}
    rows = [row(0, "speculative", **fields, rejected_at=(1, 2, 0, 1)), row(1, "speculative", drafted=0)]
    drafts = cell(summed(results(rows))).modes["speculative"].speculation
    assert drafts is not None
    assert (drafts.acceptance, drafts.rejected, drafts.tokens_per_step, drafts.steps_saved) == (0.75, 10, 4.0, 30)
    assert [(one.reached, one.accepted) for one in drafts.positions] == [(10, 9), (9, 7), (7, 7), (7, 6)][:4]


def test_positions_add_up_to_the_accepted_tokens() -> None:
    """The last of ten steps drafted two tokens and not four, so that 27 tokens were accepted and not 29."""
    [*found] = positions([row(0, "speculative", draft_length=4, steps=10, rejected_at=(1, 2, 0, 1), accepted=27)])
    assert sum(one.accepted for one in found) == 27
    assert [one.accepted for one in found] == [9, 7, 7, 4]
    assert all(one.share == one.accepted / one.reached for one in found)


def test_few_requests_are_warned_of() -> None:
    few = [row(index, "plain") for index in range(99)]
    assert "fewer than 100 requests (all/all 99" in summed(results(few)).warnings[0]
    assert summed(results([*few, row(99, "plain")])).warnings == ()


@pytest.fixture(scope="module")
def routed() -> Summary:
    """300 requests: even ones save 0.6 s of 1 s, odd ones would lose 0.1 s of 0.2 s. Routed speculates always in its
    first 200, then always rightly; it predicts savings in the right order."""
    rows = []
    for index in range(300):
        pays = index % 2 == 0
        plain_s, speculative_s = (1.0, 0.4) if pays else (0.2, 0.3)
        speculates = pays or index < 200
        tokens = 200 if pays else 10
        rows += [
            row(index, "plain", e2e_s=plain_s, label="long" if pays else "short", output_tokens=tokens),
            row(index, "speculative", e2e_s=speculative_s, label="long" if pays else "short", output_tokens=tokens),
            row(
                index, "routed", e2e_s=speculative_s if speculates else plain_s, output_tokens=tokens,
                arm="speculative" if speculates else "plain", draft_length=4 if speculates else 0,
                label="long" if pays else "short", saving_ms=500.0 + index if pays else -50.0 - index,
                request_class="summarization/long" if pays or index < 200 else "short_qa/short",
            ),
        ]  # fmt: skip
    return summed(results(rows))


def test_routed_is_held_against_the_oracle(routed: Summary) -> None:
    [figures] = routed.oracle
    assert isinstance(figures, OracleFigures)
    assert figures.oracle_saving_s == pytest.approx(150 * 0.6)
    assert figures.captured_first == pytest.approx((100 * 0.6 - 100 * 0.1) / (100 * 0.6))
    assert figures.captured_warm == pytest.approx(1.0)
    assert figures.captured == pytest.approx((150 * 0.6 - 100 * 0.1) / (150 * 0.6))
    assert figures.captured_by_choice == pytest.approx(figures.captured)
    assert figures.plain_over_routed is not None
    assert figures.plain_over_routed.estimate == pytest.approx(180 / (180 - 80))
    assert figures.speculative_over_routed is not None
    assert figures.speculative_over_routed.estimate == pytest.approx(105 / 100)
    assert figures.worst_class is not None
    assert figures.worst_class.request_class == "short"
    assert figures.worst_class.slow_down.estimate == pytest.approx(10 / 30)


def test_predictions_are_held_against_what_was_measured(routed: Summary) -> None:
    [figures] = routed.oracle
    assert figures.rank_correlation is not None
    assert figures.rank_correlation > 0.8
    lengths = {one.length: (one.precision, one.recall, one.actual) for one in figures.lengths}
    assert lengths == {"short": (1.0, pytest.approx(1 / 3), 150), "medium": (None, None, 0), "long": (0.6, 1.0, 150)}
    warm = {one.length: (one.precision, one.recall) for one in figures.lengths_warm}
    assert warm["short"] == warm["long"] == (1.0, 1.0)


def test_points_and_break_even_terms_are_for_plots(routed: Summary) -> None:
    assert len(routed.points) == 300
    point = routed.points[0]
    assert (point.plain_s, point.speculative_s, point.saving_s) == (1.0, 0.4, 0.6)
    assert (point.predicted_saving_s, point.speculated, point.length) == (0.5, 1.0, "long")
    rows = [
        row(0, "plain", ttft_s=0.1, e2e_s=1.1, output_tokens=101),
        row(0, "speculative", ttft_s=0.15, e2e_s=0.55, output_tokens=101, steps=25, draft_length=5),
    ]
    [terms] = summed(results(rows)).break_even
    assert terms.plain_tpot_s == pytest.approx(0.01)
    assert terms.step_s == pytest.approx(0.016)
    assert terms.extra_ttft_s == pytest.approx(0.05)
    assert terms.draft_length == 5


def test_rounds_and_drafts_are_kept_apart() -> None:
    rows = [
        row(index, mode, round=number, draft=draft)
        for draft in ("a", "b")
        for number in range(3)
        for index in range(4)
        for mode in ("plain", "speculative")
    ]
    summary = summed(results(rows, drafts=("a", "b"), rounds=3))
    whole = [one for one in summary.cells if one.request_class == one.length == "all"]
    assert [(one.draft, one.requests, one.comparisons["speculative"].pairs) for one in whole] == [
        ("a", 4, 12),
        ("b", 4, 12),
    ]


def test_always_speculative_is_one_mode_whichever_was_answered_first() -> None:
    modes, times = ("plain", "speculative:2", "speculative:6", "routed"), (1.0, 0.8, 0.2, 0.8)
    rows = [
        row(index, mode, e2e_s=seconds)
        for index in range(12)
        for mode, seconds in list(zip(modes, times, strict=True))[:: 1 if index % 2 else -1]
    ]
    [found] = summed(results(rows, modes=modes)).oracle
    assert found.speculative_over_routed is not None
    assert found.speculative_over_routed.estimate == pytest.approx(1.0)


def test_a_class_of_a_few_requests_in_many_rounds_is_not_the_worst() -> None:
    times = {"plain": 1.0, "speculative": 0.5, "routed": 2.0}
    rows = [
        row(index, mode, round=turn, e2e_s=seconds, label="rare")
        for turn in range(10)
        for index in range(2)
        for mode, seconds in times.items()
    ]
    [found] = summed(results(rows, rounds=10)).oracle
    assert found.worst_class is None
