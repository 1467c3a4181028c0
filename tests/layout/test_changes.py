"""The files of `changes/` have names and items that the changelog takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.changes import KINDS, ROOT, ChangeError, merged, read

CHANGELOG = (
    "# Changelog\n\n## [2] - unreleased\n\n### Added\n\n- Old.\n\n### Fixed\n\n- F.\n\n## [1]\n\n### Added\n\n- A.\n"
)


def test_files_of_this_tree_fit_its_changelog() -> None:
    merged((ROOT / "CHANGELOG.md").read_text(), read(ROOT / "changes") | {kind: ["- Item."] for kind in KINDS})


def test_items_go_to_the_newest_version(tmp_path: Path) -> None:
    (tmp_path / "one.added.md").write_text("- New,\n  on two lines.\n")
    (tmp_path / "two.fixed.md").write_text("- Mended.\n")
    changed = merged(CHANGELOG, read(tmp_path))
    expected = CHANGELOG.replace("- Old.\n", "- Old.\n- New,\n  on two lines.\n").replace("- F.\n", "- F.\n- Mended.\n")
    assert changed == expected


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("one.md", "- New.", "the name must be TOPIC.KIND.md"),
        ("one.new.md", "- New.", "the name must be TOPIC.KIND.md"),
        ("one.added.md", "New.", "needs items"),
        ("one.added.md", "", "needs items"),
        ("one.added.md", "- " + "x" * 130, "130 characters"),
    ],
)
def test_other_files_are_refused(name: str, text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ChangeError, match=error):
        read(tmp_path)
