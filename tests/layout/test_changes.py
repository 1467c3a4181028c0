"""The files of `changes/` have names and items that the changelog takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.changes import KINDS, ROOT, ChangeError, merged, read, require_release

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


def test_a_release_has_a_date_and_no_files_left() -> None:
    require_release("v2", CHANGELOG.replace("unreleased", "2026-12-01"), {})


@pytest.mark.parametrize(
    ("tag", "date", "changes", "error"),
    [
        ("v2", "2026-12-01", {"added": ["- New."]}, "changes/ has files"),
        ("v2", "unreleased", {}, "with a date, not '## .2. - unreleased'"),
        ("v1", "2026-12-01", {}, "must be that of v1"),
        ("v2.0", "2026-12-01", {}, "must be that of v2.0"),
    ],
)
def test_a_release_that_is_not_ready_is_refused(tag: str, date: str, changes: dict[str, list[str]], error: str) -> None:
    with pytest.raises(ChangeError, match=error):
        require_release(tag, CHANGELOG.replace("unreleased", date), changes)
