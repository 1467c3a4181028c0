"""Tests that need vLLM's own classes, one outer test for each file that runs inside vLLM's environment."""

from __future__ import annotations

import pytest

from tests.vllm.plugin.run_inside import INSIDE, Report

FILES = sorted(path.name for path in INSIDE.glob("check_*.py"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES)
def test_inside_vllm(file: str, inside: Report) -> None:
    assert set(inside.results.get(file, {})) == {"passed"}, inside.output[-8000:]
