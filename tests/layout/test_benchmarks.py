"""Benchmarks that pages name exist and are listed, and the harness that all of them share.

A figure can be measured again, or its page names the commit that did.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.__main__ import BENCHMARKS
from tests.benchmarks.harness import Interval, Option, Report, benchmark, ratio, turns

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = sorted((ROOT / "tests" / "benchmarks").glob("*.py"))
_COMMAND = re.compile(r"tests\.benchmarks\.(\w+)\s+([^`]*)`")
_NAMED = re.compile(r"tests\.benchmarks\.(\w+)((?:`?, `\w+`)*)")


def named_in(text: str) -> set[str]:
    """The benchmarks of `python -m tests.benchmarks.a`, `b`."""
    return {name for first, more in _NAMED.findall(text) for name in (first, *re.findall(r"`(\w+)`", more))}


def options_of(text: str) -> set[tuple[str, str]]:
    """The options that `python -m tests.benchmarks.NAME --option value` has in a page, each with its NAME."""
    return {(name, option) for name, rest in _COMMAND.findall(text) for option in re.findall(r"--([\w-]+)", rest)}


def has_option(name: str, option: str) -> bool:
    """Whether the source of the benchmark `name` declares `option`."""
    source = (ROOT / "tests" / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    return option in ("smoke", "json") or f" {option.replace('-', '_')}=Option(" in source


def test_a_row_of_names_is_read() -> None:
    assert named_in("`python -m tests.benchmarks.kill`, `rollback`; `gone` at commit 1234567") == {"kill", "rollback"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_benchmark_that_a_page_names_is_listed(page: Path) -> None:
    assert named_in(page.read_text(encoding="utf-8")) - BENCHMARKS.keys() == set()


def test_the_options_of_a_command_are_read() -> None:
    assert options_of("`python -m\ntests.benchmarks.kill --patches 3\n--json FILE`, `--share`") == {
        ("kill", "patches"),
        ("kill", "json"),
    }
    assert has_option("kill", "patches")
    assert not has_option("kill", "patch")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_benchmark_has_every_option_that_a_page_prints(page: Path) -> None:
    found = options_of(page.read_text(encoding="utf-8"))
    assert [each for each in sorted(found) if not has_option(*each)] == []


def test_every_benchmark_is_listed() -> None:
    scripts = {file.stem for file in SCRIPTS if "benchmark(\n" in (text := file.read_text()) or "benchmark(__f" in text}
    assert scripts - {"harness"} == BENCHMARKS.keys()


def test_ways_take_turns_in_alternating_order_after_a_warm_up() -> None:
    assert [*turns("ab", 2)] == [(-1, "b"), (-1, "a"), (0, "a"), (0, "b"), (1, "b"), (1, "a")]


def test_a_ratio_of_pairs_has_an_interval_around_it() -> None:
    found = ratio([2.0, 4.0, 6.0, 8.0], [1.0, 2.0, 4.0, 4.0])
    assert found.low < found.estimate == 20 / 11 < found.high


def test_a_ratio_of_equal_pairs_is_certain() -> None:
    assert ratio([3.0] * 5, [2.0] * 5) == Interval(1.5, 1.5, 1.5)


def run(monkeypatch: pytest.MonkeyPatch, file: Path, *options: str) -> tuple[object, dict[str, Any]]:
    """The exit status and the row of a benchmark whose answers are wrong if its option is 13."""

    def measure(args: argparse.Namespace, report: Report) -> None:
        report.row("one", count=args.count, p50_ms=Interval(1.0, 0.5, 2.0), none=None)
        report.require(args.count != 13, "13 is wrong")

    monkeypatch.setattr(sys, "argv", ["name", "--json", str(file), *options])
    with pytest.raises(SystemExit) as ended:
        benchmark("name.py", "About.", measure, count=Option(100, 1, "how many"))
    return ended.value.code, json.loads(file.read_text().splitlines()[-1])


@pytest.mark.integration  # the row names the commit, by git
def test_a_run_ends_with_a_row_of_its_circumstances_and_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, row = run(monkeypatch, tmp_path / "row.jsonl")
    assert status == 0
    assert row["rows"] == [{"name": "one", "count": 100, "p50_ms": [1.0, 0.5, 2.0], "none": None}]
    assert row.keys() == {"benchmark", "commit", "date", "machine", "smoke", "options", "rows"}


@pytest.mark.integration  # the row names the commit, by git
@pytest.mark.parametrize(
    ("options", "count"), [(("--smoke",), 1), (("--smoke", "--count", "7"), 7), (("--count", "7"), 7)]
)
def test_a_smoke_run_is_small_unless_an_option_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], count: int
) -> None:
    assert run(monkeypatch, tmp_path / "row.jsonl", *options)[1]["options"] == {"count": count}


@pytest.mark.integration  # the row names the commit, by git
def test_a_wrong_answer_fails_the_run_and_keeps_its_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, row = run(monkeypatch, tmp_path / "row.jsonl", "--count", "13")
    assert (status, row["rows"][0]["count"]) == (1, 13)
