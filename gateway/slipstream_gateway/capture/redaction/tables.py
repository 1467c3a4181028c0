"""Finds the values in columns of secrets: of Markdown's tables, of separated values, of aligned text, and of SQL.

A table begins with a line of names. Each line is looked at once, so that the time is linear.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from slipstream_gateway.capture.redaction.labelled import Found, Named, is_shown_value
from slipstream_gateway.capture.redaction.names import Sort

Span = tuple[int, int]
_MOST_CHARS = 4000  # of a line
_SEPARATED = {
    sep: re.compile(rf'(?P<cell>"(?:[^"\n]|"")*"[^{sep}\n]*|[^{sep}\n]*)(?:{re.escape(sep)}|\Z)')
    for sep in ("|", "│", "\t", ";", ",")
}
_ALIGNED = re.compile(r"(?P<cell>\S+(?: \S+)*)")
_RULED = (_SEPARATED["|"], _SEPARATED["│"])
_PATTERNS = {**_SEPARATED, "  ": _ALIGNED}
_RULER = re.compile(r"[-+|=:\s\u2500-\u257f]+")
_TITLE = re.compile(r"[^\W\d][\w.#/%-]*(?: [\w.#/%-]+){0,2}(?<!\.)")
_MOST_SPACES = 1  # in a title before a comma: more are prose
_EDGES = " \t\r\"'`*"
_REST_OF_TITLE = re.compile(r"(?:s|[ _-]?(?:\d|hash|value|code|old|new)s?)?")
_INSERT = re.compile(r"\((?P<titles>[^()]{1,1000})\)\s{0,9}values\s{0,9}(?=\()", re.IGNORECASE)
_COPY = re.compile(r"\bcopy[ \t][^()\n]{1,200}\((?P<titles>[^()\n]{1,1000})\)[ \t]+from[ \t]+stdin[^\n]{0,200}", re.I)
_TUPLE = re.compile(r"\s{0,9},?\s{0,9}\((?P<cells>(?:[^()'\n]|'(?:[^'\n]|'')*'|\([^()\n]*\))*)\)")
_SQL_CELL = re.compile(r"(?P<cell>(?:[^,']|'(?:[^']|'')*')*)(?:,|\Z)")


def columns(text: str, names: Sequence[Named]) -> Iterator[Found]:
    """The values under `names` of secrets, and what takes their place."""
    begins = [begin for begin, _, _ in names]

    def within(begin: int, end: int) -> Sequence[Named]:
        return names[bisect_left(begins, begin) : bisect_left(begins, end)]

    done = 0
    for begin, _, _ in names:
        if begin < done:
            continue
        line = text.rfind("\n", done, begin) + 1 or done, _line_end(text, begin)
        done = line[1]
        if line[1] - line[0] <= _MOST_CHARS:
            for sep, pattern in _PATTERNS.items():
                if text.find(sep, *line) >= 0:
                    found, end = _rows(text, line, pattern, within(*line))
                    yield from found
                    done = max(done, end)
    yield from _sql(text, within) if names else ()


def _sql(text: str, within: Callable[[int, int], Sequence[Named]]) -> Iterator[Found]:
    """The values of SQL's `INSERT`, and of PostgreSQL's `COPY`."""
    for insert in _INSERT.finditer(text):
        wanted = _secrets(text, _cells(_SQL_CELL, text, *insert.span("titles")), within(*insert.span("titles")))
        at = insert.end()
        while wanted and (values := _TUPLE.match(text, at)):
            yield from _values(text, _cells(_SQL_CELL, text, *values.span("cells")), wanted)
            at = values.end()
    for copy in _COPY.finditer(text):
        wanted = _secrets(text, _cells(_SQL_CELL, text, *copy.span("titles")), within(*copy.span("titles")))
        at = copy.end() + 1
        while wanted and at < len(text) and not text.startswith("\\.", at):
            end = _line_end(text, at)
            yield from _values(text, _cells(_SEPARATED["\t"], text, at, end), wanted)
            at = end + 1


def _rows(text: str, line: Span, pattern: re.Pattern[str], names: Sequence[Named]) -> tuple[list[Found], int]:
    """The values below the titles in `line`, and the end of their table; none if the line has no titles."""
    titles = _cells(pattern, text, *line)
    if len(titles) < 2 or not (wanted := _secrets(text, titles, names)):
        return [], 0
    if pattern not in _RULED and not all(_TITLE.fullmatch(text, *title) for title in titles):
        return [], 0
    if pattern is _SEPARATED[","] and any(text.count(" ", *title) > _MOST_SPACES for title in titles):
        return [], 0
    before = text.rfind("\n", 0, max(line[0] - 1, 0)) + 1
    if line[0] and line[0] - before <= _MOST_CHARS and _is_row(text, (before, line[0] - 1), pattern, len(titles)):
        return [], 0
    found: list[Found] = []
    end = line[1]
    while end < len(text):
        row = end + 1, _line_end(text, end + 1)
        if row[1] - row[0] > _MOST_CHARS:
            break
        if not _is_ruler(text, row):
            cells = _cells(pattern, text, *row)
            if len(cells) != len(titles):
                break
            found += _values(text, cells, wanted)
        end = row[1]
    return found, end


def _is_row(text: str, line: Span, pattern: re.Pattern[str], columns: int) -> bool:
    return not _is_ruler(text, line) and len(_cells(pattern, text, *line)) == columns


def _is_ruler(text: str, line: Span) -> bool:
    return line[1] > line[0] and _RULER.fullmatch(text, *line) is not None


def _cells(pattern: re.Pattern[str], text: str, begin: int, end: int) -> list[Span]:
    """The cells of a line, without spaces and quotes. The edges of a table are none."""
    cells = []
    for match in pattern.finditer(text, begin, end):
        low, high = match.span("cell")
        while low < high and text[low] in _EDGES:
            low += 1
        while low < high and text[high - 1] in _EDGES:
            high -= 1
        cells.append((low, high))
        if match.end() == end and match.end("cell") == end:
            break
    if pattern in _RULED:
        if text.startswith("||", begin):  # titles of Jira's
            return [cell for cell in cells if cell[0] < cell[1]]
        cells = cells[1:] if cells and cells[0][0] == cells[0][1] else cells
        cells = cells[:-1] if cells and cells[-1][0] == cells[-1][1] else cells
    return cells


def _secrets(text: str, titles: Sequence[Span], names: Sequence[Named]) -> list[tuple[int, Sort]]:
    """The columns whose title ends with the name of a secret."""
    found = []
    for index, (begin, end) in enumerate(titles):
        sorts = [sort for low, high, sort in names if begin <= low < end and _REST_OF_TITLE.fullmatch(text, high, end)]
        if sorts and _TITLE.fullmatch(text, begin, end):
            found.append((index, max(sorts)))
    return found


def _values(text: str, cells: Sequence[Span], wanted: Sequence[tuple[int, Sort]]) -> Iterator[Found]:
    for index, sort in wanted:
        if index < len(cells) and is_shown_value(text, *cells[index], sort):
            yield (*cells[index], "[secret]")


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
