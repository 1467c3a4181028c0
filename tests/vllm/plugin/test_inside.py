"""Tests that need vLLM's own classes, one outer test for each file that runs inside vLLM's environment."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.vllm.plugin.conftest import INSIDE, Report

FILES = sorted(path.name for path in INSIDE.glob("check_*.py"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES)
def test_inside_vllm(file: str, run_inside: Callable[[str], Report]) -> None:
    report = run_inside(file)
    assert report.status == 0, report.output[-8000:]
    print("\n".join(re.findall(r"^PASSED .*$", report.output, re.MULTILINE)))
    [passed] = re.findall(r"(\d+) passed", report.output)
    assert int(passed) > 0
    assert "skipped" not in report.output
