"""Each figure says the worst case, where it is, and whether it reaches its goal; what was not measured says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from slipstream_kernels.spec_verify.benchmark.cases import Case, Kind
from slipstream_kernels.spec_verify.benchmark.checks import Passed
from slipstream_kernels.spec_verify.benchmark.figures import Figure, baselines_table, cases_table, figures, table
from slipstream_kernels.spec_verify.benchmark.records import Measured, Memory, Run, What
from slipstream_kernels.spec_verify.benchmark.report import report
from slipstream_kernels.spec_verify.benchmark.timing import Time, quartiles

PASSED = Passed(findings=("checked",))
LARGE = Case(requests=64, draft_tokens=4, vocabulary=128_256, acceptance=0.7)
LARGER = replace(LARGE, requests=128)
ONE = replace(LARGE, requests=1)


def measured(case: Case, what: What, median_us: float) -> Measured:
    return Measured(
        case=case,
        what=what,
        time=Time(median_us=median_us, low_us=median_us - 0.5, high_us=median_us + 0.5),
        needed_bytes=40e6,
        all_rows_bytes=80e6,
        mean_accepted=1.8,
    )


@pytest.fixture
def run() -> Run:
    return Run(
        machine="a GPU",
        versions="some",
        copy_bandwidth=4e12,
        measured=[
            measured(LARGE, What.KERNEL, 20.0),
            measured(LARGE, What.ALL_ROWS, 25.0),
            measured(LARGE, What.EAGER, 400.0),
            measured(LARGE, What.FOUR_LAUNCHES, 28.0),
            measured(LARGER, What.KERNEL, 10.0),
            measured(LARGER, What.ALL_ROWS, 20.0),
            measured(LARGER, What.EAGER, 110.0),
            measured(ONE, What.KERNEL, 11.0),
        ],
        memory=[Memory(case=LARGER, bytes=150_000)],
    )


def named(run: Run, start: str) -> Figure:
    return next(figure for figure in figures(run, PASSED) if figure.what.startswith(start))


def test_bandwidth_share_is_that_of_the_worst_large_batch(run: Run) -> None:
    figure = named(run, "bytes that must be read")
    assert figure.measured.startswith("50% at worst (V 128,256, B 64, γ 4, α 0.7), 100% at best")
    assert figure.met is False


def test_reading_all_rows_counts_all_of_them(run: Run) -> None:
    figure = named(run, "the same with every row read")
    assert figure.measured.startswith("80% at worst")


def test_lazy_rows_compare_with_all_rows_of_the_same_case(run: Run) -> None:
    figure = named(run, "lazy rows")
    assert figure.measured.startswith("0.80× at worst (V 128,256, B 64")
    assert "0.50× at best" in figure.measured
    assert figure.met is False


def test_a_speed_up_is_judged_by_its_least(run: Run) -> None:
    eager, four = named(run, "against eager"), named(run, "against four launches, fp32 copy given")
    assert (eager.measured[:5], eager.met) == ("11.0×", True)
    assert (four.measured[:4], four.met) == ("1.4×", False)


def test_one_request_and_memory_have_their_own_goals(run: Run) -> None:
    assert named(run, "B = 1").met is True
    assert named(run, "extra GPU memory").measured.startswith("0.15 MB")


def test_what_was_not_measured_is_neither_reached_nor_missed(run: Run) -> None:
    figure = named(run, "against torch.compile")
    assert (figure.measured, figure.met) == ("not measured", None)
    assert "| against torch.compile | ≥ 3× | not measured | - |" in table([figure])


def test_tables_have_one_line_per_case(run: Run) -> None:
    assert len(cases_table(run, PASSED).splitlines()) == 2 + 3
    assert len(baselines_table(run, PASSED).splitlines()) == 2 + 2


def test_other_kinds_do_not_count_for_the_goals(run: Run) -> None:
    run.measured.append(measured(replace(ONE, kind=Kind.FILTERED), What.KERNEL, 100.0))
    assert named(run, "B = 1").met is True


def test_the_report_ends_with_the_figures_and_names_what_was_left_out(run: Run) -> None:
    run.skipped.append("FlashInfer: not installed")
    text = report(run, PASSED)
    assert "not measured: FlashInfer: not installed" in text
    assert text.splitlines()[-1].startswith("| extra GPU memory")


def test_results_are_written_with_what_was_checked(run: Run, tmp_path: Path) -> None:
    run.write(tmp_path / "out.json", PASSED.findings)
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["checks"] == ["checked"]
    assert document["measured"][0]["what"] == "kernel"
    assert document["measured"][0]["case"]["kind"] == "one-hot"


def test_the_median_of_replays() -> None:
    assert quartiles([3.0, 1.0, 2.0, 100.0, 2.0]).median_us == 2.0
