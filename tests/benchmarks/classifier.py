"""Recomputes the classifier's figures on sources held out: `python tests/benchmarks/classifier.py FILE [--exclude S]`.

FILE has labelled requests, as `slipstream train` takes them. What it prints stands in docs/classifier.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from slipstream_gateway.decide.classify import default_model
from slipstream_tools.train.report import as_markdown
from slipstream_tools.train.rows import read_rows
from slipstream_tools.train.trainer import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", type=Path, help="labelled requests, JSON Lines, gzipped or not")
    parser.add_argument("--exclude", action="append", default=[], metavar="SOURCE", help="never train on this source")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.process_time()
    rows = read_rows(arguments.requests).rows
    trained = train(rows, default_model, excluded=arguments.exclude, seed=arguments.seed, progress=_say)
    print(as_markdown(trained))
    print(f"\n{time.process_time() - start:.0f} s of CPU time")


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
