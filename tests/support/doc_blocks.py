"""The code blocks of README.md, CONTRIBUTING.md and docs/, and `@runs`, which hands a test the blocks that it executes.

A block that no test executes has its reason in a comment right above it: `<!-- not run: it needs a GPU -->`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
_DOCUMENT = re.compile(r"<<'(?P<end>\w+)'$", re.MULTILINE)
_MARK = re.compile(r"<!-- not run:(?P<reason>(?:(?!-->).)*)-->\s*\Z", re.DOTALL)


class Block(NamedTuple):
    """A fenced block. `reason` is that of its `not run` mark; None where it has no mark."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        first = self.text.strip().splitlines()[0] if self.text.strip() else ""
        return f"{self.page}:{self.line} `{first}`"

    @property
    def commands(self) -> list[str]:
        """Its commands without prompts, and without what they print."""
        lines = self.text.splitlines()
        has_prompts = any(line.startswith("$ ") for line in lines)
        found: list[str] = []
        is_open = False
        for line in lines:
            if is_open:
                found[-1] += "\n" + line
            elif line.startswith("$ ") or (line and not has_prompts):
                found.append(line.removeprefix("$ "))
            else:
                continue
            is_open = _goes_on(found[-1])
        return found

    @property
    def output(self) -> str:
        """What stands below the last command: what it prints."""
        last = self.commands[-1].splitlines()[-1]
        return self.text.rpartition(last + "\n")[2]


def _goes_on(command: str) -> bool:
    """Whether a shell would wait for another line: a quote, a loop or a here-document is open, or the last line ends
    with `\\`."""
    document = _DOCUMENT.search(command)
    if document is not None:
        return not command.endswith(f"\n{document['end']}")
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return True
    return command.endswith("\\") or ("do" in words and "done" not in words)


def pages() -> list[str]:
    """README.md, CONTRIBUTING.md and all pages of docs/."""
    site = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", *site]


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        mark = _MARK.search(text, 0, match.start())
        body = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        reason = " ".join(mark["reason"].split()) if mark else None
        found.append(Block(page, text.count("\n", 0, match.start()) + 1, match["language"], body, reason))
    return found


def find(page: str, beginning: str) -> Block:
    """The one block of a page that begins so; a prompt does not count."""
    found = [block for block in blocks_of(page) if block.text.removeprefix("$ ").startswith(beginning)]
    if len(found) != 1:
        raise LookupError(f"{page}: {len(found)} blocks begin with {beginning!r}, expected one")
    return found[0]


def runs(page: str, *beginnings: str) -> pytest.MarkDecorator:
    """The test gets these blocks as `blocks`, in this order, and executes them; tests/docs/test_blocks.py counts."""
    return pytest.mark.parametrize("blocks", [[find(page, beginning) for beginning in beginnings]], ids=[page])


def runs_each(*where: tuple[str, str]) -> pytest.MarkDecorator:
    """As `runs`, but the test is called once for each (page, beginning), with one `block`."""
    return pytest.mark.parametrize("block", [find(*each) for each in where], ids=[page for page, _ in where])


def runs_in_order(*where: tuple[str, str]) -> pytest.MarkDecorator:
    """As `runs`, with the blocks of several pages, each as (page, beginning)."""
    return pytest.mark.parametrize("blocks", [[find(*each) for each in where]], ids=["pages"])
