"""The slow ring: tests marked `slow`, which `make test` leaves out and `make test-slow` runs.

CI runs a quarter of their files: `--slow-quarter commit` chooses it by the commit's hash, so that the quarters take
turns. Tests that take an hour or more, or build container images, are marked `slow(in_quarters=False)` and are in no
quarter. On a machine so slow that CI would not end in time, `--slow-seconds` skips the tests that begin later, and says
so.
`RECORD` has a line for each slow test: when, and at which commit, all its cases last passed. `make test-slow` writes
it (`--record`); commit the change after the commit that was tested.
"""

from __future__ import annotations

import datetime
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import pytest

QUARTERS = 4
RECORD = Path(__file__).parents[1] / "slow_ring.tsv"
_ROOT = RECORD.parents[1]


class SlowRing:
    """The plugin that selects a quarter, and keeps the record."""

    def __init__(
        self, quarter: str | None, *, record: Path = RECORD, seconds: float | None = None, writes: bool
    ) -> None:
        """`quarter` is 1 to 4, `commit`, or None for the whole ring. `writes`: this process sees all results."""
        self._end_s = None if seconds is None else time.monotonic() + seconds
        self.quarter = None if quarter is None else quarter_of(quarter)
        self._record = record
        self._writes = writes
        self._outcomes: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_report_header(self) -> str | None:
        return None if self.quarter is None else f"slow ring: quarter {self.quarter} of {QUARTERS}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.quarter is None:
            return
        ring = [item for item in items if _is_in_a_quarter(item)]
        chosen = set(sorted({item.path for item in ring})[self.quarter - 1 :: QUARTERS])
        kept = [item for item in ring if item.path in chosen]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._end_s is not None and time.monotonic() > self._end_s and item.get_closest_marker("slow"):
            pytest.skip("the time for slow tests is over")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "slow" in report.keywords:
            self._outcomes[name_of(report.nodeid)].add(report.outcome)

    def pytest_sessionfinish(self) -> None:
        passed = [name for name, outcomes in self._outcomes.items() if outcomes == {"passed"}]
        if self._writes and passed:
            write_record(self._record, passed)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._outcomes and self._record.is_file():
            terminalreporter.section("slow ring: last passed")
            terminalreporter.write(self._record.read_text(encoding="utf-8"))


def _is_in_a_quarter(item: pytest.Item) -> bool:
    slow = item.get_closest_marker("slow")
    return slow is not None and bool(slow.kwargs.get("in_quarters", True))


def name_of(nodeid: str) -> str:
    """A test's name without its cases."""
    return nodeid.partition("[")[0]


def quarter_of(chosen: str) -> int:
    """The number of a quarter, 1 to 4.

    Raises:
        pytest.UsageError: `chosen` is no quarter, or git has no commit here.
    """
    if chosen == "commit":
        return int(_head(), 16) % QUARTERS + 1
    if chosen not in map(str, range(1, QUARTERS + 1)):
        raise pytest.UsageError(f"--slow-quarter: 1 to {QUARTERS}, or commit, not {chosen!r}")
    return int(chosen)


def write_record(record: Path, passed: list[str]) -> None:
    """Dates the lines of `passed`, and drops lines of files that no longer exist."""
    lines = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    rows = dict(line.split("\t", 1) for line in lines)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    rows |= dict.fromkeys(passed, f"{today}\t{_head()[:10]}")
    kept = (f"{name}\t{when}\n" for name, when in sorted(rows.items()) if (_ROOT / name.partition("::")[0]).is_file())
    record.write_text("".join(kept), encoding="utf-8")


def _head() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise pytest.UsageError(f"--slow-quarter commit: {done.stderr.strip()}")
    return done.stdout.strip()


def register(config: pytest.Config) -> None:
    """Adds the plugin; pytest-xdist's workers see only their own results."""
    writes = config.getoption("record") and not hasattr(config, "workerinput")
    seconds = config.getoption("slow_seconds")
    config.pluginmanager.register(SlowRing(config.getoption("slow_quarter"), seconds=seconds, writes=writes))
