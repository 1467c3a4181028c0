"""Predicted against measured savings, from runs of `slipstream bench`, for the plot of docs/measurements.md.

The runs had the modes plain, speculative and routed. Writes `docs/images/predicted-saving.json`, and reports the rank
correlation of each load. `python -m docs.generate` draws it. A smoke run makes a short run of its own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from slipstream_tools.bench.summary import SPECULATIVE, SUMMARY_FILE, read_summary

from docs.generate.figures import PREDICTED_SAVINGS
from tests.benchmarks.harness import Option, Report, benchmark
from tests.benchmarks.routing import bench, make_requests
from tests.benchmarks.systems import running_system


def short_run(folder: Path) -> Path:
    calls = folder / "calls.jsonl"
    make_requests(calls, 6, 1)
    with running_system() as system:
        bench(system.gateway_url, calls, folder / "run", 1, 1)
    return folder / "run"


def measure(args: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as name:
        folders = args.folders or [short_run(Path(name))]
        summaries = [read_summary(folder / SUMMARY_FILE) for folder in folders]
    rows = [
        {
            "load": str(point.concurrency),
            "class": point.request_class,
            "plain_ms": round(1000 * point.plain_s, 1),
            "measured_ms": round(1000 * point.saving_s, 1),
            "predicted_ms": round(1000 * point.predicted_saving_s, 1),
        }
        for summary in summaries
        for point in summary.points
        if point.mode == SPECULATIVE and point.predicted_saving_s is not None
    ]
    report.require(rows, "no request has a prediction")
    if not args.smoke:
        PREDICTED_SAVINGS.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
    for one in (one for summary in summaries for one in summary.oracle):
        report.row(f"{one.concurrency} in flight", rank_correlation=one.rank_correlation, requests=one.requests)


if __name__ == "__main__":
    benchmark(__file__, __doc__, measure, folders=Option(None, [], "`--out` of runs", kind=Path))
