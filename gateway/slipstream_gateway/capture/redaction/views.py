"""Forms of a text to look for secrets in. Each character of a view has its place in the text.

Texts are compared in Unicode's compatibility form (NFKC), with the digits of every script as ASCII's, every space and
dash as the plain one, and without characters that are not seen. Two more views have no escapes and no markup, and one
has what Base64 encodes.
"""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

_DECODED_TIMES = 3
_RUN = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+")
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}"
    r"|\\[\"'\\/bfnrt]|(?:%[0-9A-Fa-f]{2})+|&(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});"
)
_LETTERS = {"b": " ", "f": " ", "n": "\n", "r": "\n", "t": "\t"}
_MARKUP = re.compile(
    r"</?(?:b|i|u|em|strong|span|mark|code|a|font|wbr|small|tt)\b[^<>\n]{0,200}>|</?[A-Za-z][^<>\n]{0,200}>|[*`~]+|\\(?=\n)"
)
_INLINE = re.compile(r"</?(?:b|i|u|em|strong|span|mark|code|a|font|wbr|small|tt)\b|[*`~\\]")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{12,}+={0,2}")
_BASE64_BYTES = 4096


class View(NamedTuple):
    """Character i of `text` stands for the source from `begins[i]` to `ends[i]`. None: for itself. `was_encoded`: in
    Base64."""

    text: str
    begins: Sequence[int] | None = None
    ends: Sequence[int] | None = None
    was_encoded: bool = False

    def source(self, begin: int, end: int) -> tuple[int, int]:
        """Where the source has `text[begin:end]`, which is not empty."""
        if self.begins is None or self.ends is None:
            return begin, end
        return self.begins[begin], self.ends[end - 1]

    def replaced(self, pattern: re.Pattern[str], change: Callable[[str], Iterator[tuple[int, int, str]]]) -> View:
        """A view of the same source. `change` yields the pieces of each match: where they are in it, and their text."""
        parts: list[str] = []
        begins: list[int] = []
        ends: list[int] = []
        done = 0

        def add(begin: int, end: int, text: str | None) -> None:
            parts.append(self.text[begin:end] if text is None else text)
            if text is not None:
                low, high = self.source(begin, end)
                begins.extend([low] * len(text))
                ends.extend([high] * len(text))
            elif self.begins is None or self.ends is None:
                begins.extend(range(begin, end))
                ends.extend(range(begin + 1, end + 1))
            else:
                begins.extend(self.begins[begin:end])
                ends.extend(self.ends[begin:end])

        for match in pattern.finditer(self.text):
            start = match.start()
            add(done, start, None)
            for begin, end, text in change(match.group()):
                add(start + begin, start + end, text)
            done = match.end()
        if not done:
            return self
        add(done, len(self.text), None)
        return View("".join(parts), begins, ends)


def views_of(text: str) -> Iterator[View]:
    """The views of `text`, each once."""
    plain = folded(text)
    yield plain
    decoded = plain
    for _ in range(_DECODED_TIMES):
        before, decoded = decoded, decoded.replaced(_ESCAPE, _decoded)
        if decoded is before or decoded.text == before.text:
            break
    if decoded is not plain:
        if not decoded.text.isascii():
            decoded = decoded.replaced(_RUN, _clusters)
        yield decoded
    bare = decoded.replaced(_MARKUP, _without_markup)
    if bare is not decoded:
        yield bare
    encoded = _decoded_base64(decoded)
    if encoded.text:
        yield encoded


def folded(text: str) -> View:
    """`text` in plain characters."""
    view = View(text)
    return view if text.isascii() else view.replaced(_RUN, _clusters)


def _clusters(run: str) -> Iterator[tuple[int, int, str]]:
    """Each character of a run with its combining marks."""
    if not any(map(unicodedata.combining, run)):
        yield from ((index, index + 1, _plain(char)) for index, char in enumerate(run))
        return
    starts = [index for index, char in enumerate(run) if not index or not unicodedata.combining(char)]
    for begin, end in zip(starts, [*starts[1:], len(run)], strict=True):
        cluster = run[begin:end]
        yield (
            begin,
            end,
            "".join(map(_plain, unicodedata.normalize("NFKC", cluster))) if end - begin > 1 else _plain(cluster),
        )


@cache
def _plain(char: str) -> str:
    if char.isascii():
        return char
    digit = unicodedata.digit(char, None)
    if digit is not None:
        return str(digit)
    match unicodedata.category(char):
        case "Zs":
            return " "
        case "Pd":
            return "-"
        case "Cf":  # such as a zero-width space
            return ""
    changed = {"\u2212": "-", "\u2028": "\n", "\u2029": "\n", "\u200b": ""}.get(char)
    return unicodedata.normalize("NFKC", char) if changed is None else changed


def _decoded(escape: str) -> Iterator[tuple[int, int, str]]:
    if escape[0] == "%":
        at = 0
        for char in unquote_to_bytes(escape).decode("utf-8", "replace"):
            size = 3 * len(char.encode()) if char != "\ufffd" else 3
            yield at, min(at + size, len(escape)), char
            at = min(at + size, len(escape) - 3)
        return
    if escape[0] == "&":
        text = html.unescape(escape)
    elif escape[1] in "ux":
        text = _of_code(escape)
    else:
        text = _LETTERS.get(escape[1], escape[1])
    yield 0, len(escape), text


def _of_code(escape: str) -> str:
    if len(escape) > 6:
        return chr(0x10000 + ((int(escape[2:6], 16) - 0xD800) << 10) + int(escape[8:], 16) - 0xDC00)
    char = chr(int(escape[2:], 16))
    return "\ufffd" if "\ud800" <= char <= "\udfff" else char


def _without_markup(tag: str) -> Iterator[tuple[int, int, str]]:
    """Nothing in place of what stands inside a line, else a space."""
    yield 0, len(tag), "" if _INLINE.match(tag) else " "


def _decoded_base64(view: View) -> View:
    """What is encoded in the runs of a view that decode to text, one a line. All of a line stands for its whole run."""
    parts: list[str] = []
    begins: list[int] = []
    ends: list[int] = []
    for match in _BASE64.finditer(view.text):
        text = _text_in(match.group()[:_BASE64_BYTES])
        if text is None:
            continue
        begin, end = view.source(*match.span())
        parts.append(f"{text}\n")
        begins.extend([begin] * (len(text) + 1))
        ends.extend([end] * (len(text) + 1))
    return View("".join(parts), begins, ends, was_encoded=True)


def _text_in(run: str) -> str | None:
    plain = run.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        text = base64.b64decode(plain + "=" * (-len(plain) % 4)).decode()
    except ValueError:
        return None
    return text if text.isprintable() or all(char.isprintable() or char.isspace() for char in text) else None
