"""`slipstream bench`: compares plain, speculative and routed decoding on a team's own requests."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream_core.errors import CommandError

from slipstream_tools.bench.options import add_arguments, parse_options
from slipstream_tools.bench.report import REPORT_FILE, write_report
from slipstream_tools.bench.session import Session
from slipstream_tools.bench.summary import SUMMARY_FILE, write_summary
from slipstream_tools.bench.terminal import as_text
from slipstream_tools.bench.verdict import unmet

EXIT_UNMET = 3

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """0 when the run is whole and all that is expected holds; 3 where something does not.

    Raises:
        CommandError: the run cannot be made; what was measured is kept, and the same command goes on with it.
        ManifestError: the manifest is not good.
    """
    options = parse_options(args)
    session = Session(options)
    try:
        results = session.measure()
    except KeyboardInterrupt:
        print("\nslipstream: interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    summary = session.summary(results)
    with _writing(options.out / SUMMARY_FILE) as path:
        write_summary(summary, path)
    with _writing(options.out / REPORT_FILE) as path:
        write_report(summary, results.rows, path)
    if options.write_policy is not None:
        with _writing(options.write_policy) as path:
            path.write_bytes(session.policy(results))
    print(as_text(summary))  # last: whoever reads it may go away, and the files are there all the same
    print(f"\n{options.out / REPORT_FILE}")
    missed = unmet(summary, options.expect)
    for line in missed:
        print(f"slipstream: not as expected: {line}", file=sys.stderr)
    return EXIT_UNMET if missed else 0


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """An error of the system names the file, which by itself it does only where it cannot be opened."""
    try:
        yield path
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror or error}") from error
