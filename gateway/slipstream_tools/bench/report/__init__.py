"""`report.html`: the comparison as one page that people can hand on. No network, no prompts, no answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slipstream_tools.bench.report.page import page
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import Summary

REPORT_FILE = "report.html"

__all__ = ["REPORT_FILE", "write_report"]


def write_report(summary: Summary, rows: Sequence[Row], path: Path) -> None:
    """Write the page for `summary` and the measured `rows` it was made of, in the order they ran. Raises `OSError`."""
    path.write_text(page(summary, rows), encoding="utf-8")
