"""docs/tested.md names the versions of Kubernetes that the tests use, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Where each version is chosen, and how a line chooses it.
CHOSEN = {
    ".ci/build-apiserver": r"VERSION=v([\d.]+)",
    "tests/charts/test_chart_rendering.py": r'^RECENT = "([\d.]+)"',
    "tests/operator/test_children_validity.py": r'^KUBERNETES = "([\d.]+)"',
}


def test_versions_that_were_tried_are_those_of_the_tests() -> None:
    section = (ROOT / "docs" / "tested.md").read_text(encoding="utf-8").partition("## Kubernetes")[2]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| 1.")]
    tried = {version for row in rows if "not tried" not in row[1] for version in re.findall(r"[\d.]+\d", row[0])}
    assert tried == {chosen(path, pattern) for path, pattern in CHOSEN.items()}
    assert any("not tried" in row[1] for row in rows)


def chosen(path: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, path
    return found[1]
