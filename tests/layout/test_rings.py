"""The slow ring, shards and `--times`, in a suite of five files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rings import QUARTERS, write_record

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SLOW = """
import pytest

@pytest.fixture
def slow_to_start():
    yield

@pytest.mark.slow
@pytest.mark.parametrize("case", (1, 2))
def test_slow(case, slow_to_start):
    assert not __file__.endswith("c.py")

def test_quick():
    pass
"""
FILES = [f"test_{letter}.py" for letter in "abcde"]
CONFTEST = """
from pathlib import Path
from tests.support import rings, shards, times

def pytest_addoption(parser):
    parser.addoption("--shard")
    parser.addoption("--slow-quarter")
    parser.addoption("--slow-seconds", type=float)

def pytest_configure(config):
    config.addinivalue_line("markers", "slow: slow")
    options = {"seconds": config.getoption("slow_seconds"), "record": Path("record.tsv"), "writes": True}
    ring = rings.SlowRing(config.getoption("slow_quarter"), **options)
    shards.register(config)
    config.pluginmanager.register(ring)
    times.register(config)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    for name in FILES:
        (tmp_path / name).write_text(SLOW, encoding="utf-8")
    return tmp_path


def call(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--rootdir={folder}", "-m", "slow"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run(folder: Path, *options: str) -> str:
    done = call(folder, *options)
    return done.stdout + done.stderr


def cases(output: str) -> list[str]:
    """The tests that ran, with their cases."""
    return sorted(line.split()[0] for line in output.splitlines() if "%]" in line)


def ran(output: str) -> list[str]:
    """The files whose tests ran."""
    return sorted({case.partition("::")[0] for case in cases(output)})


def test_quarters_are_disjoint_and_together_the_whole_ring(suite: Path) -> None:
    quarters = [ran(run(suite, f"--slow-quarter={number}")) for number in range(1, QUARTERS + 1)]
    assert sorted(name for quarter in quarters for name in quarter) == FILES
    assert all(quarters)


def test_commit_chooses_one_quarter_for_all_processes(suite: Path) -> None:
    chosen = ran(run(suite, "--slow-quarter=commit"))
    assert chosen in [ran(run(suite, f"--slow-quarter={number}")) for number in range(1, QUARTERS + 1)]


def test_other_quarters_are_refused(suite: Path) -> None:
    assert "--slow-quarter: 1 to 4, or commit, not '5'" in run(suite, "--slow-quarter=5")


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("quarter", [(), ("--slow-quarter=1",)], ids=["ring", "quarter"])
def test_shards_are_a_partition_of_what_one_machine_runs(suite: Path, quarter: tuple[str, ...], count: int) -> None:
    parts = [cases(run(suite, *quarter, f"--shard={number}/{count}")) for number in range(1, count + 1)]
    assert sorted(case for part in parts for case in part) == cases(run(suite, *quarter))


def test_a_shard_without_a_test_is_no_failure(suite: Path) -> None:
    empty = call(suite, "--slow-quarter=1", "--shard=5/5")
    assert (empty.returncode, cases(empty.stdout)) == (0, []), empty.stdout + empty.stderr


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "1/0", "a/b"])
def test_other_shards_are_refused(suite: Path, part: str) -> None:
    assert f"--shard: a part and the number of parts, such as 2/3, not '{part}'" in run(suite, f"--shard={part}")


def test_tests_that_begin_too_late_are_skipped_with_the_reason(suite: Path) -> None:
    output = run(suite, "--slow-seconds=-1", "-rs")
    assert output.count(" SKIPPED") == 2 * len(FILES)
    assert "the time for slow tests is over" in output
    in_time = run(suite, "--slow-seconds=600", "--slow-quarter=1")
    assert ran(in_time) == ran(run(suite, "--slow-quarter=1"))
    assert "SKIPPED" not in in_time


def test_record_has_the_tests_whose_cases_all_passed(suite: Path) -> None:
    output = run(suite)
    assert "test_c.py::test_slow[1] FAILED" in output
    # The record drops files that the repository does not have: this suite's file is one.
    assert (suite / "record.tsv").read_text(encoding="utf-8") == ""


def test_record_keeps_older_lines_and_dates_those_that_passed(tmp_path: Path) -> None:
    record, here = tmp_path / "record.tsv", "tests/layout/test_rings.py"
    record.write_text(f"{here}::a\t2020-01-01\tabc\n{here}::b\t2020-01-01\tabc\ntests/gone.py::c\t2020-01-01\tabc\n")
    write_record(record, [f"{here}::b"])
    old, new = record.read_text(encoding="utf-8").splitlines()
    assert old == f"{here}::a\t2020-01-01\tabc"
    assert new.startswith(f"{here}::b\t20")
    assert "2020" not in new


def test_times_name_files_tests_and_fixtures(suite: Path) -> None:
    output = run(suite, "--slow-quarter=1")
    assert "test_a.py::test_slow[2]" in output
    assert any(line.split()[:4] == ["slow_to_start", "(test_a.py)", "2", "0.0"] for line in output.splitlines())
    assert "by file" in output
