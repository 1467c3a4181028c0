"""Benchmarks that pages name exist: a figure can be measured again, or its page names the commit that did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_NAMED = re.compile(r"tests\.benchmarks\.(\w+)((?:`?, `\w+`)*)")


def named_in(text: str) -> set[str]:
    """The benchmarks of `python -m tests.benchmarks.a`, `b`."""
    return {name for first, more in _NAMED.findall(text) for name in (first, *re.findall(r"`(\w+)`", more))}


def test_a_row_of_names_is_read() -> None:
    assert named_in("`python -m tests.benchmarks.kill`, `rollback`; `gone` at commit 1234567") == {"kill", "rollback"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_benchmark_that_a_page_names_exists(page: Path) -> None:
    named = named_in(page.read_text(encoding="utf-8"))
    assert {name for name in named if not (ROOT / "tests" / "benchmarks" / f"{name}.py").is_file()} == set()
