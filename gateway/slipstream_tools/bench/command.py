"""`slipstream bench`: compares plain, speculative and routed decoding on a team's own requests."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from slipstream_core.errors import CommandError

from slipstream_tools.bench.options import parse_options
from slipstream_tools.bench.report import REPORT_FILE, write_report
from slipstream_tools.bench.session import Session
from slipstream_tools.bench.summary import SUMMARY_FILE, write_summary
from slipstream_tools.bench.terminal import as_text
from slipstream_tools.bench.verdict import unmet

EXIT_UNMET = 3


def run(args: argparse.Namespace) -> int:
    """0 when the run is complete and all expectations hold; 3 where one does not.

    Raises:
        CommandError: the run failed; its rows are kept, and the same command continues it.
        ManifestError: the manifest is invalid.
    """
    options = parse_options(args)
    session = Session(options)
    try:
        results = session.measure()
    except KeyboardInterrupt:
        print("\nslipstream: interrupted; the same command continues the run", file=sys.stderr)
        return 130
    summary = session.summary(results)
    writers: dict[Path, Callable[[Path], object]] = {
        options.out / SUMMARY_FILE: lambda path: write_summary(summary, path),
        options.out / REPORT_FILE: lambda path: write_report(summary, results.rows, path),
    }
    if options.write_policy is not None:
        writers[options.write_policy] = lambda path: path.write_bytes(session.policy(results))
    for path, write in writers.items():
        try:
            write(path)
        except OSError as error:
            raise CommandError(f"{path}: cannot be written: {error.strerror or error}") from error
    print(as_text(summary))  # last: a closed pipe must not keep the files from being written
    print(f"\n{options.out / REPORT_FILE}")
    missed = unmet(summary, options.expect)
    for line in missed:
        print(f"slipstream: expectation failed: {line}", file=sys.stderr)
    return EXIT_UNMET if missed else 0
