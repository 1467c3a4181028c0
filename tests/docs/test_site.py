"""The site has every page, and its measurements begin with one screen of results."""

from __future__ import annotations

import re

from tests.support.doc_blocks import ROOT

ONE_SCREEN_LINES = 30


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} == listed


def test_measurements_begin_with_figure_goal_result_and_date() -> None:
    lines = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8").splitlines()[:ONE_SCREEN_LINES]
    head = lines.index("| figure | goal | measured | date |")
    rows = [line.split(" | ") for line in lines[head + 2 :] if line.startswith("| ")]
    assert len(rows) >= 10
    dated = [row for row in rows if re.fullmatch(r"20\d\d-\d\d-\d\d \|", row[-1])]
    assert [row for row in rows if row not in dated and "GPU" not in row[0]] == []


def test_the_first_screen_repeats_the_figures_of_the_sections() -> None:
    """A figure that is measured again must be changed in both places."""
    page = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    first, _, sections = page.partition("## How they were measured")
    for figure in ("1.2 % (-2.7 to 5.0)", "1.79", "1.74-1.85", "1.00", "0.99-1.02", "99.7 %", "1.03", "0.28 ms"):
        assert figure in first
        assert figure in sections
