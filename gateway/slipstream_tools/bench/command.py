"""`slipstream bench`: compares plain, speculative and routed decoding on a team's own requests."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream_core.errors import named_os_errors

from slipstream_tools.bench.again import command_again
from slipstream_tools.bench.options import parse_options
from slipstream_tools.bench.report import REPORT_FILE, write_report
from slipstream_tools.bench.session import Session
from slipstream_tools.bench.summary import SUMMARY_FILE, write_summary
from slipstream_tools.bench.terminal import as_text
from slipstream_tools.bench.verdict import unmet

EXIT_UNMET = 3
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143


@contextmanager
def terminable() -> Iterator[list[int]]:
    """While the context lasts, SIGTERM interrupts as Ctrl-C does, so that servers are stopped and folders removed.
    Yields a list that has the signal once it came; a second SIGTERM does not interrupt the cleaning."""
    ended: list[int] = []

    def interrupt(number: int, _: object) -> None:
        if not ended:
            ended.append(number)
            signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        yield ended
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)


def run(args: argparse.Namespace) -> int:
    """0 when the run is complete and all expectations hold; 3 where one does not; 130 or 143 after a signal.

    Raises:
        CommandError: the run failed; its rows are kept, and the same command continues it.
        ManifestError: the manifest is invalid.
    """
    options = parse_options(args)
    session = Session(options)
    try:
        with terminable() as ended:
            results = session.measure()
    except KeyboardInterrupt:
        print("\nslipstream: interrupted; the same command continues the run", file=sys.stderr)
        return EXIT_TERMINATED if ended else EXIT_INTERRUPTED
    summary = session.summary(results)
    writers: dict[Path, Callable[[Path], object]] = {
        options.out / SUMMARY_FILE: lambda path: write_summary(summary, path),
        options.out / REPORT_FILE: lambda path: write_report(
            summary, results.rows, path, command=command_again(options)
        ),
    }
    if options.write_policy is not None:
        writers[options.write_policy] = lambda path: path.write_bytes(session.policy(results))
    for path, write in writers.items():
        with named_os_errors(f"{path}: cannot be written"):
            write(path)
    print(as_text(summary))  # last: a closed pipe must not keep the files from being written
    print(f"\n{options.out / REPORT_FILE}")
    missed = unmet(summary, options.expect)
    for line in missed:
        print(f"slipstream: expectation failed: {line}", file=sys.stderr)
    return EXIT_UNMET if missed else 0
