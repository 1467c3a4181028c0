"""`--times`: where a run's minutes go, by file, by fixture, by what tests waited for and by started program.

A time is wall-clock time of the worker that ran the test. The time of a fixture excludes the fixtures that it uses. The
processor time is that of the worker and of all processes below it. The part of processes that still run, such as a
server that files share, is added at the end of each file.
Starts are counted in the processes of the tests and in the Python processes that these start.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.support.child_startup import starts
from tests.support.polling import WAITED

ROWS = 25
_FILES = 8
_CPU_TIMES = 4  # user, system, and those of the children that it has waited for
_COLUMNS = ("setup", "call", "teardown", "waited", "cpu")


class Row(NamedTuple):
    """The seconds of a file's tests."""

    setup: float
    call: float
    teardown: float
    waited: float
    cpu: float

    @property
    def total(self) -> float:
        return self.setup + self.call + self.teardown


class Clock:
    """The plugin in the processes that run tests: measures fixtures and waits, and attaches them to the reports."""

    def __init__(self) -> None:
        self._inner_s: list[float] = []  # time in fixtures that the fixture under way uses, innermost last
        self._fixtures: defaultdict[str, list[float]] = defaultdict(list)
        self._waited_s = 0.0
        self._cpu_s = _processor_s()
        self._running = Running()
        self._ends_file = False

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        began_s = time.perf_counter()
        self._inner_s.append(0.0)
        try:
            return (yield)
        finally:
            taken_s = time.perf_counter() - began_s
            inner_s = self._inner_s.pop()
            if self._inner_s:
                self._inner_s[-1] += taken_s
            self._fixtures[f"{fixturedef.argname} ({fixturedef.baseid or 'pytest'})"].append(taken_s - inner_s)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        self._ends_file = nextitem is None or nextitem.path != item.path

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        report.fixtures_s, self._fixtures = dict(self._fixtures), defaultdict(list)
        report.waited_s = WAITED.total_s - self._waited_s
        self._waited_s += report.waited_s
        report.cpu_s = _processor_s() - self._cpu_s
        self._cpu_s += report.cpu_s
        if call.when == "teardown" and self._ends_file:
            report.cpu_s += self._running.uncounted_s()
        return report


class Running:
    """The processor time of the processes below this one that still run."""

    def __init__(self) -> None:
        self._counted_s: dict[psutil.Process, float] = {}
        self._waited_for_s = _waited_for_s()

    def uncounted_s(self) -> float:
        """The time since the last call. The counted time of a process that has ended is subtracted if its parent waited
        for it: the system adds all its time to the parent then. Triton, for one, does not wait for its stubs."""
        running_s: dict[psutil.Process, float] = {}
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has just ended
                running_s[process] = sum(process.cpu_times()[:_CPU_TIMES])
        grown_s = sum(time_s - self._counted_s.get(process, 0.0) for process, time_s in running_s.items())
        ended_s = sum(time_s for process, time_s in self._counted_s.items() if process not in running_s)
        waited_for_s = _waited_for_s()
        counted_twice_s = min(ended_s, waited_for_s - self._waited_for_s)
        self._counted_s, self._waited_for_s = running_s, waited_for_s
        return grown_s - counted_twice_s


class Times:
    """The plugin in the controller: adds up the reports and prints the tables."""

    def __init__(self) -> None:
        self._files: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._tests: Counter[str] = Counter()
        self._fixtures: defaultdict[str, list[float]] = defaultdict(list)
        handle, name = tempfile.mkstemp(prefix="slipstream-starts-")
        os.close(handle)
        self._starts = Path(name)
        os.environ[starts.VARIABLE] = name

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._files[file][report.when or ""] += report.duration
        self._files[file]["waited"] += getattr(report, "waited_s", 0.0)
        self._files[file]["cpu"] += getattr(report, "cpu_s", 0.0)
        self._tests[report.nodeid] += report.duration
        for name, times in getattr(report, "fixtures_s", {}).items():
            self._fixtures[name] += times

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("times")
        for line in self._lines():
            write(line)

    def _lines(self) -> Iterator[str]:
        files = {name: Row(*(times[phase] for phase in _COLUMNS)) for name, times in self._files.items()}
        sums = Row(*(sum(column) for column in zip(*files.values(), strict=True))) if files else Row(0, 0, 0, 0, 0)
        yield f"{'file':<66} {'total':>7} {'setup':>7} {'call':>7} {'end':>7} {'waits':>7} {'cpu':>7}"
        for name, row in [("all", sums), *_largest(files)]:
            times = (row.total, row.setup, row.call, row.teardown, row.waited, row.cpu)
            yield f"{name:<66} {' '.join(f'{time_s:7.1f}' for time_s in times)}"
        yield f"{'test':<106} {'total':>7}"
        for name, total in self._tests.most_common(ROWS):
            yield f"{name:<106} {total:7.1f}"
        yield f"{'fixture':<82} {'times':>7} {'total':>7} {'longest':>7}"
        by_time = sorted(self._fixtures.items(), key=lambda item: -sum(item[1]))
        for name, taken in by_time[:ROWS]:
            yield f"{name:<82} {len(taken):7} {sum(taken):7.1f} {max(taken):7.1f}"
        yield f"{'program':<16} {'starts':>7}  by file"
        started: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for line in self._starts.read_text(encoding="utf-8").splitlines():
            program, _, file = line.partition("\t")
            started[program][file.removeprefix("tests/")] += 1
        for program, by_file in sorted(started.items(), key=lambda item: -item[1].total()):
            largest = ", ".join(f"{file} {count}" for file, count in by_file.most_common(_FILES))
            yield f"{program:<16} {by_file.total():7}  {largest}"


def _processor_s() -> float:
    times = os.times()
    return times.user + times.system + _waited_for_s()


def _waited_for_s() -> float:
    """The processor time of the processes that this one and those below it have waited for."""
    times = os.times()
    return times.children_user + times.children_system


def _largest(files: Mapping[str, Row]) -> list[tuple[str, Row]]:
    return sorted(files.items(), key=lambda item: -item[1].total)[:ROWS]


def register(config: pytest.Config) -> None:
    """The plugins that this process needs: the controller adds up, and whoever runs tests measures."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        config.pluginmanager.register(Times())
    alone = not is_worker and not config.getoption("numprocesses", None)
    if is_worker or alone:
        config.pluginmanager.register(Clock())
    if alone:  # a worker records since its start, like every process that tests start
        sys.addaudithook(starts.record)
