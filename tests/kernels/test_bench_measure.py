"""A run measures every case with the code that runs on a GPU; only the timer is replaced. Then its table and file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from slipstream_kernels.gpu_timing import Time
from slipstream_kernels.spec_verify.bench import report, write
from slipstream_kernels.spec_verify.benchmark.cases import Case, Kind, inputs
from slipstream_kernels.spec_verify.benchmark.checks import Passed
from slipstream_kernels.spec_verify.benchmark.measure import Row, Run, eager, input_sets, measure

PASSED = Passed(findings=("checked",))
CASE = Case(requests=1, draft_tokens=4, vocabulary=150, acceptance=0.7)
LARGE = Case(requests=64, draft_tokens=4, vocabulary=128_256, acceptance=0.7)


class WallClock:
    """A timer for machines without a GPU: it makes every call, and its times mean nothing."""

    def time(self, calls: Sequence[Callable[[], object]]) -> Time:
        start = time.perf_counter()
        for call in calls:
            call()
        mean_us = (time.perf_counter() - start) * 1e6 / len(calls)
        return Time(median_us=mean_us, low_us=mean_us, high_us=mean_us)

    def copy_bandwidth(self) -> float:
        return 1e9


@pytest.fixture(scope="module")
def run(device: str) -> Run:
    cases = [CASE, *(replace(CASE, kind=kind) for kind in Kind if kind is not Kind.SAMPLED)]
    return measure(cases, PASSED, WallClock(), device, "some device", rotated_bytes=100.0, compiled_requests=())


@pytest.fixture
def fixed() -> Run:
    def at(median_us: float) -> Time:
        return Time(median_us=median_us, low_us=median_us - 0.5, high_us=median_us + 0.5)

    rows = [
        Row(case=LARGE, accepted=1.8, needed_bytes=40e6, kernel=at(20), all_rows=at(25), eager=at(400)),
        Row(case=replace(LARGE, kind=Kind.FILTERED), accepted=1.8, needed_bytes=40e6, kernel=at(100)),
    ]
    return Run(device="some device", versions="some versions", copy_bandwidth=4e12, rows=rows)


def test_every_kind_is_measured(run: Run) -> None:
    assert [row.case.kind for row in run.rows] == list(Kind)
    assert all(row.kernel.median_us > 0 for row in run.rows)


def test_sampled_requests_are_compared_with_all_rows_and_eager_pytorch(run: Run) -> None:
    compared = {row.case.kind for row in run.rows if row.all_rows and row.eager}
    assert compared == {Kind.SAMPLED}
    assert run.skipped == []


def test_inputs_rotate_past_the_cache() -> None:
    case = Case(requests=1, draft_tokens=4, vocabulary=1000, acceptance=0.7)
    assert len(input_sets(case, 95_000, "cpu")) == 10
    assert len(input_sets(case, 1, "cpu")) == 2


def test_eager_pytorch_accepts_as_often_as_the_case_says(device: str) -> None:
    given = inputs(Case(requests=1000, draft_tokens=3, vocabulary=200, acceptance=0.7), 0, device)
    torch.manual_seed(0)
    ids, accepted = eager(given.target_logits, given.draft_token_ids, given.sampling.temperature)
    assert accepted.double().mean() == pytest.approx(0.7 + 0.7**2 + 0.7**3, abs=0.4)
    assert ((ids >= 0).sum(1) == accepted + 1).all()
    assert (ids < 200).all()


def test_the_compiled_baseline_is_one_graph() -> None:
    given = inputs(Case(requests=2, draft_tokens=3, vocabulary=50, acceptance=0.7), 0, "cpu")
    arguments = (given.target_logits, given.draft_token_ids, given.sampling.temperature)
    assert torch._dynamo.explain(eager)(*arguments).graph_count == 1


def test_the_table_has_a_line_per_case_and_compares_with_the_kernel(fixed: Run) -> None:
    sampled, filtered = (line for line in report(fixed).splitlines() if line.startswith(("| sampled", "| top-k")))
    assert sampled == (
        "| sampled | 128,256 | 64 | 4 | 0.7 | 1.80 | 20.0 (19.5-20.5) | 50% | 25.0 (1.2×) | 400.0 (20.0×) | - |"
    )
    assert filtered.endswith("| 100.0 (99.5-100.5) | 10% | - | - | - |")


def test_the_report_names_the_device_and_every_failed_measurement(fixed: Run) -> None:
    fixed.skipped.append("torch.compile: out of memory")
    text = report(fixed)
    assert "some device, some versions, copy bandwidth 4.00 TB/s" in text
    assert text.endswith("not measured: torch.compile: out of memory")


def test_results_are_written_with_the_findings_of_the_checks(fixed: Run, tmp_path: Path) -> None:
    write(fixed, PASSED, tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["checks"] == ["checked"]
    assert document["rows"][0]["kernel"]["median_us"] == 20.0
    assert document["rows"][0]["case"]["kind"] == "sampled"
