"""The classifier's figures on sources held out, which stand in docs/classifier.md.

The file has labelled requests, as `slipstream train` takes them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from slipstream_gateway.decide.classify import default_model
from slipstream_tools.train.report import as_markdown
from slipstream_tools.train.rows import read_rows
from slipstream_tools.train.trainer import train

from tests.benchmarks.harness import Option, Report, benchmark

_TASKS = ("classification", "open_chat", "summarization")


def made_up(folder: Path) -> Path:
    """A few labelled requests of two sources, for a smoke run."""
    rows = [
        {
            "source": f"source-{index // 3 % 2}",
            "task": _TASKS[index % 3],
            "messages": [{"role": "user", "content": f"{_TASKS[index % 3]} of thing {index}"}],
            "response_tokens_est": (4, 300, 150)[index % 3],
        }
        for index in range(60)
    ]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def measure(args: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = read_rows(args.requests or made_up(Path(folder))).rows
    trained = train(rows, default_model, excluded=args.exclude, seed=args.seed, progress=lambda _: None)
    report.note(as_markdown(trained))
    report.require(trained.held_out is not None, "no source was held out")
    if trained.held_out is not None:
        figures = {name: value for name, value in trained.held_out.total._asdict().items() if value is not None}
        report.row("all rows, held out", **figures)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        requests=Option(None, None, "labelled requests, JSON Lines, gzipped or not", kind=Path),
        exclude=Option([], [], "never train on these sources", kind=str),
        seed=Option(0, 0, "of the training"),
    )
