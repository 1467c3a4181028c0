"""The files of `changes/`, one for each user-visible change: `python -m deploy.changes` moves them into CHANGELOG.md.
`python -m deploy.changes v1.2.3` fails unless the changelog is ready for that release.

A file is `TOPIC.KIND.md` and has items as the changelog has them. Branches that are merged at the same time change no
common line this way.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {
    "upgrade": "Before you upgrade",
    "added": "Added",
    "changed": "Changed",
    "removed": "Removed",
    "fixed": "Fixed",
}
_NAME = re.compile(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md")
_MAX_LINE = 130


class ChangeError(Exception):
    """A file of `changes/` has another name or form, or the changelog is not ready for a release."""


def read(folder: Path) -> dict[str, list[str]]:
    """The items of all files by their kind. Raises `ChangeError`."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*")):
        name, text = _NAME.fullmatch(path.name), path.read_text(encoding="utf-8").strip()
        if name is None:
            raise ChangeError(f"{path}: the name must be TOPIC.KIND.md, with KIND one of {', '.join(KINDS)}")
        for line in text.splitlines() or [""]:
            if not line.startswith(("- ", "  ")) or len(line) > _MAX_LINE:
                raise ChangeError(f"{path}: needs items, `- …`, in lines of {_MAX_LINE} characters at most: {line!r}")
        found.setdefault(name[1], []).append(text)
    return found


def merged(changelog: str, changes: dict[str, list[str]]) -> str:
    """The changelog with the items at the ends of the newest version's sections."""
    start = changelog.index("\n## [") + 1
    end = changelog.index("\n## [", start) + 1
    body = changelog[start:end]
    for kind, heading in KINDS.items():
        if kind not in changes:
            continue
        title = f"\n### {heading}\n"
        if title not in body:
            raise ChangeError(f"CHANGELOG.md: the newest version has no section {heading!r}")
        before, _, after = body.partition(title)
        section, separator, rest = after.partition("\n### ")
        body = f"{before}{title}{section.rstrip()}\n" + "\n".join(changes[kind]) + f"\n{separator or chr(10)}{rest}"
    return changelog[:start] + body + changelog[end:]


def require_release(tag: str, changelog: str, changes: dict[str, list[str]]) -> None:
    """Raises `ChangeError` unless the newest version is that of `tag`, with its date and all changes."""
    if changes:
        raise ChangeError("changes/ has files: run `make changelog`, commit, and tag that commit")
    newest = changelog[changelog.index("\n## [") + 1 :].partition("\n")[0]
    if not re.fullmatch(rf"## \[{re.escape(tag.removeprefix('v'))}\] - \d{{4}}-\d\d-\d\d", newest):
        raise ChangeError(f"CHANGELOG.md: the newest version must be that of {tag}, with a date, not {newest!r}")


def main(tags: Sequence[str]) -> int:
    folder, path = ROOT / "changes", ROOT / "CHANGELOG.md"
    changelog = path.read_text(encoding="utf-8")
    try:
        changes = read(folder)
        for tag in tags:
            require_release(tag, changelog, changes)
        path.write_text(merged(changelog, changes), encoding="utf-8")
    except ChangeError as error:
        print(error, file=sys.stderr)
        return 1
    for file in folder.glob("*.md"):
        file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
