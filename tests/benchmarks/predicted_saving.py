"""Predicted against measured savings, from a run of `slipstream bench`, for the plot of docs/measurements.md:
`python -m tests.benchmarks.predicted_saving FOLDER ...`, whose runs had the modes plain, speculative and routed.

Writes `docs/images/predicted-saving.json` and prints the rank correlation of each load. `python -m docs.generate`
draws it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from slipstream_tools.bench.summary import SPECULATIVE, SUMMARY_FILE, read_summary

from docs.generate.figures import PREDICTED_SAVINGS


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted against measured savings of a run of slipstream bench.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="--out of a run")
    summaries = [read_summary(folder / SUMMARY_FILE) for folder in parser.parse_args().folders]
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
    PREDICTED_SAVINGS.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
    for one in (one for summary in summaries for one in summary.oracle):
        print(f"load {one.concurrency}: rank correlation {one.rank_correlation}, {one.requests} requests")


if __name__ == "__main__":
    main()
