"""The benchmark of prompt look-up reports no time before its checks have passed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from slipstream_kernels.gpu_timing import Time
from slipstream_kernels.ngram_lookup import bench, ngram_lookup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="triton is for Linux")


class FixedTimer:
    """Runs every call once and reports 2 µs per call and a copy bandwidth of 1 TB/s."""

    def __init__(self) -> None:
        self.calls = 0

    def time(self, calls: Sequence[Callable[[], object]]) -> Time:
        for call in calls:
            call()
        self.calls += len(calls)
        return Time(median_us=2.0, low_us=1.0, high_us=3.0)

    def copy_bandwidth(self) -> float:
        return 1e12


SMALL = bench.Case(requests=1, columns=400, near=True)


def few_inputs(monkeypatch) -> None:
    monkeypatch.setattr(bench, "_MOST_INPUTS", 2)


def test_figures_are_printed_once_the_checks_have_passed(monkeypatch, capsys, device):
    few_inputs(monkeypatch)
    timer = FixedTimer()
    assert bench.measure(timer, [SMALL], [SMALL.inputs(1, device)], device) == 0
    printed = capsys.readouterr().out
    assert timer.calls == 4
    assert "Checks passed" in printed
    assert "| 1.0× |" in printed


@pytest.mark.parametrize("wrong_field", ["token_ids", "lengths"])
def test_no_figure_is_printed_when_a_check_fails(capsys, device, wrong_field):
    def wrong(*inputs, backend, **others):
        found = ngram_lookup(*inputs, backend="reference", **others)
        return found if backend == "reference" else found._replace(**{wrong_field: getattr(found, wrong_field) + 1})

    timer = FixedTimer()
    assert bench.measure(timer, [], [SMALL.inputs(0, device)], device, wrong) == 1
    printed = capsys.readouterr().out
    assert timer.calls == 0
    assert printed == "CHECKS FAILED, no times are reported. The kernel differs from the reference: ragged batch 0\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures on a GPU")
def test_without_a_gpu_it_reports_that_nothing_was_timed(capsys):
    assert bench.main() == 0
    assert capsys.readouterr().out == "No GPU was found, so nothing was timed.\n"


@pytest.mark.parametrize("case", list(bench.cases()))
def test_no_case_reads_more_than_its_text(case):
    assert case.read_bytes <= case.text_bytes
