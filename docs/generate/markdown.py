"""Pages and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MADE = "<!-- Made by `make docs` from the code: change it there, not here. -->"


def page(title: str, introduction: str, *parts: str) -> str:
    return "\n\n".join((_MADE, f"# {title}", introduction, *parts)) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), "|---" * len(head) + "|", *(_line(row) for row in rows)]
    return "\n".join(lines)


def listing(rows: Iterable[Sequence[str]]) -> str:
    """Terms, each with its text. Shorter than a table of two columns, and long texts break into lines."""
    return "\n".join(f"- {term}: {' '.join(text.split())}" if text else f"- {term}" for term, text in rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """One line; a bar would end the cell."""
    return " ".join(text.replace("|", "\\|").split())
