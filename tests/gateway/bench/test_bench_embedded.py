"""The whole of it: bench starts Triton with another draft, measures, and leaves nothing running."""

from __future__ import annotations

from pathlib import Path

import pytest
from slipstream_tools.bench.results import read_results
from slipstream_tools.bench.summary import read_summary
from slipstream_tools.cli import main

pytestmark = pytest.mark.integration


def test_drafts_and_draft_lengths_are_compared_on_the_embedded_stack(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--requests", "embedded:6:2", "--limit", "3", "--out", str(out), "--warmup", "1"]
    modes = ["--modes", "plain,speculative,routed", "--draft-lengths", "1,3", "--drafts", "ngram"]
    assert main(["bench", *arguments, *modes]) == 0
    rows = read_results(out / "results.jsonl").rows
    assert len(rows) == 12
    assert [row.error for row in rows] == [None] * 12
    assert {row.draft for row in rows} == {"ngram"}
    assert {row.draft_length for row in rows if row.mode == "speculative:3"} == {3}
    speculative = [row for row in rows if row.drafted]
    assert speculative
    for row in speculative:
        assert row.steps is not None
        assert row.steps + row.accepted >= row.output_tokens - 1
        assert sum(row.rejected_at) <= row.steps
    summary = read_summary(out / "summary.json")
    assert summary.run.drafts == ("ngram",)
    assert summary.cells[0].comparisons["speculative:3"].parity_equal == (
        summary.cells[0].comparisons["speculative:3"].parity_compared
    )
    assert "starting the stack" in capfd.readouterr().err
    assert main(["bench", *arguments, *modes]) == 0  # all is measured: nothing is started
    assert "starting the stack" not in capfd.readouterr().err
