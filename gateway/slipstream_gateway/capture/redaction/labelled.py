"""Finds what stands after a name of a secret, such as `password: `: to the end of its line, or to the matching quote.

Each occurrence of a name is looked at once, and no name inside a value is: the time is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from slipstream_gateway.capture.redaction.names import ASCII_NAMES, COMPOUNDS, IS_WORDS, NAMES, SHORT, STATES, Sort

Found = tuple[int, int, str]
Named = tuple[int, int, Sort]
_SECRET, _QUOTED = "[secret]", '"[secret]"'
_CLOSERS = {
    '"': '"', "'": "'", "`": "`", "“": "”", "„": "“", "«": "»", "»": "«", "「": "」", "『": "』", "‘": "’",
    '\\"': '\\"', "\\'": "\\'", '"""': '"""', "'''": "'''",
}  # fmt: skip
_REST_OF_NAME = re.compile(
    r"(?:s\b|[_\-.][\w\-.]{0,40}|\d{1,3}\b|[A-Z]\w{0,40}|[\u00c0-\u024f\u0400-\u04ff\u0600-\u06ff\u0900-\u097f]{1,4}\b"
    r"|[\u3040-\u9fff\uac00-\ud7af]{1,6}(?=\s{0,2}[:=]))?"
)
_CLOSE = re.compile(r"""(?P<close>(?:\[\d{0,5}\])?\\?["'`*»”_]{0,3}[\])]{0,2})""")
_IS = "|".join(sorted(map(re.escape, IS_WORDS), key=len, reverse=True))
_SIGN = re.compile(
    r"""[ \t]{0,8}(?:
        (?P<assigned>=>|:=|->|→|⇒|={1,3}|:(?!//)|(?:\|\||\?\?)(?:=|(?=[ \t]{0,4}["'`])))
        |(?P<cell>\|(?!\|))
        |(?P<element>(?:[ \t]{0,4}</?[A-Za-z][^<>\n]{0,60}>){1,3}|>)
        |(?P<value>,?\s{0,40}(?:-[ \t])?\\?["']?[vV]alue\\?["']?[ \t]{0,4}[:=])
        |(?P<argument>[,(])(?=[ \t]{0,4}\\?["'])
        |(?P<cjk>是|为|為|は|が|이|은|는|가|を|：)
    )[ \t]{0,8}""",
    re.VERBOSE,
)
_SAYS = re.compile(
    rf"[ \t]{{1,3}}(?:{_IS})(?:[ \t]{{1,3}}(?:now|set to|jetzt|ahora|maintenant))?(?P<colon>[ \t]?[:=])?[ \t]{{1,3}}"
)
_QUALIFIER = re.compile(
    r"[ \t]for[ \t][^\n:]{1,80}:[ \t]{1,4}"
    r"|[^\n:=|\"'`<>.!?;{}]{1,40}?(?:(?P<colon>[:=](?!/))|[ \t](?P<says>is|ist|lautet|est|es|é|è|jest))[ \t]{1,4}"
)
_SPACE = re.compile(r"[ \t]{1,4}")
_NEXT_LINE = re.compile(
    r"(?:[|>][+-]?\d?|<<[-~]?[\"']?\w{1,20}[\"']?)?[ \t]*\r?\n"
    r"(?:[ \t]*(?:```\w*[ \t]*)?\r?\n){0,2}(?P<indent>[ \t]*)(?=\S)"
)
_TOKEN = re.compile(r"\S{1,400}")
_LITERAL = re.compile(r"(?:-?\d[\d.]*)(?=[ \t]*[,}\]])|\[[^\[\]\n]+\](?=[ \t]*[,}\]]|[ \t]*$)", re.MULTILINE)
_TYPE = (
    r"(?:(?:string|str|bytes|bool|boolean|int|integer|number|any|object|dict|list|char|text|varchar|void|auto|null|none|nil"
    r"|secretstr|undefined)(?:\[\])*|(?:[a-z]\w+\.)?[a-z]\w*[\[<][\w\[\]<>(), .|\"']*[\]>])"
)
_TYPED = re.compile(rf"{_TYPE}(?:\s*\|\s*{_TYPE})*\??[ \t]*=[ \t]*[rbfu]?(?=[\"'])", re.IGNORECASE)
_CODE = re.compile(
    rf"""(?:
        {_TYPE}(?:\s*\|\s*{_TYPE})*\??(?:\s*=\s*.*|\s*\)\s*->.*)?
        |true|false|optional|required|redacted|hidden|secret|password|token|include|omit|same-origin|default|n/?a
        |your[\w-]*(?:key|token|secret|pass|here)[\w-]*|-+|\*+|x{{3,}}|\.{{2,}}|…|\?+
        |\$\{{?[a-z_]+\}}?|\$\{{\{{[^{{}}]*\}}\}}|\{{\{{[^{{}}]*\}}\}}|\{{[a-z_.]+\}}|%[a-z_]+%|<[^<>]*>|\$\([^()]*\)
        |\[(?:secret|redacted|hidden|password|your[^\[\]]*)\]
        |(?-i:(?:[a-z_]{{3,}}\.)+[a-zA-Z_]{{2,}}(?:\[[^\[\]]*\])?)
        |(?:await\ |new\ |!)?[a-z_][a-z_.:]{{2,}}\((?:.*\))?(?:\.[\w.()]+)?
        |(?:os\.environ|env|process\.env|config|settings|self|this|request|args|params|options)[.\[(].*
    )[\s,;:)\]}}'"`.]*""",
    re.VERBOSE | re.IGNORECASE,
)
_CODE_CHARS = 200
_DIGITS = re.compile(
    r"(?:s|[-_ ]?(?:code|number|nummer|nr)s?)?(?![\w-])[^\d\n.;|{}()]{0,30}?"
    r"(?P<value>\d{3,8}(?:-\d{3,8})?(?:, ?\d{3,8}(?:-\d{3,8})?){0,20})(?![\w%]|[.:/-]\d)"
)
# Of code that reads a secret.
_FALLBACK = re.compile(r"(?:\|\||\?\?|\bor\b|env(?:iron\.get)?\([^(),]{1,80},)[ \t]{0,4}(?=[\"'`])")
_USER_BEFORE = re.compile(r"[^\s/]{1,64}[ \t]{0,4}/[ \t]{0,4}")
_PHRASE = re.compile(r"(?=[A-Z])(?:[^\s.,;:!?]{1,40}[ \t]){1,4}[^\s.,;:!?]{0,40}\d[^\s.,;:!?]{0,40}")
_ITEM = re.compile(r"\n(?P<indent>[ \t]*)-[ \t]+(?P<item>[^\n]*)")
_LISTED = re.compile(r"[\"']?[ \t]{0,4}[:=][ \t]{0,4}(?:\[|\r?\n[ \t]*-[ \t])")
_MOST_QUOTED_LINES = 1000  # characters
_NO_VALUES = frozenset({"", "-", "–", "—", "yes", "no", "ja", "nein", "oui", "non", "sí", "✓", "✔", "✗", "x"})
_OBJECT = re.compile(r"\{[ \t]*(?:$|[\"'\w]+[ \t]*:|\})|\[[ \t]*(?:$|\{)")
_SYMBOLS = re.compile(r"[!#$%&*+=?@^~/\\]")
_END = re.compile(r"[\s.,;:!?)\]}\"'”»」]{0,8}(?:\n|\Z)|[.!?][ \t]{1,3}(?=[A-Z\u00c0-\u00de\u0410-\u042f])")
_NOT_SMALL = re.compile(r"[0-9A-Z!#$%&*+=?@^~/\\]")
_SETTER = re.compile(r"(?:\bdefine\([\"']|set_?)\w{1,40}[\"']?$", re.IGNORECASE)
_LIMITS = {"cell": " |", "element": "<"}
_EDGES = "\"'`“”„«»「」『』‘’.,;:!?()[]{}"


def labelled(text: str, names: Iterable[Named]) -> Iterator[Found]:
    """The values after `names` of secrets, and what takes their place."""
    reader, done = _Reader(text), 0
    for begin, end, sort in names:
        if begin >= done and (value := reader.value(begin, end, sort)) is not None:
            yield value
            done = value[1]


def is_secret_name(name: str) -> bool:
    """Whether a field of this name has a secret as its value."""
    fields = [f'"{name}": "{value}"' for value in ("a1B2c3D4", "482913")]
    return any(True for field in fields for _ in labelled(field, names_in(field)))


def is_shown_value(text: str, begin: int, end: int, sort: Sort) -> bool:
    """Whether the cell of a table under a name of `sort` is a secret."""
    cell = text[begin:end]
    if sort is Sort.CODE:
        return cell.isdigit() and 3 <= len(cell) <= 8
    if sort is Sort.BARE:
        return looks_random(cell) and not cell.isdigit()
    return cell.lower() not in _NO_VALUES and not _is_code(text, begin, end)


def names_in(text: str) -> list[Named]:
    """Where the names of secrets are, the longest one at each place first."""
    low = text.lower()
    if len(low) != len(text):
        low = "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
    found = []
    for name, sort in (ASCII_NAMES if low.isascii() else NAMES).items():
        at = low.find(name)
        while at >= 0:
            end = at + len(name)
            if name == "tokens" and not _LISTED.match(low, end):
                pass  # those of a text
            elif name in ("key", "token") and low[max(0, at - 12) : at].rstrip(" _-").endswith(COMPOUNDS):
                found.append((at, end, Sort.NAMED))
            elif name not in SHORT or not (_is_letter(low[at - 1 : at]) or _is_letter(low[end : end + 1])):
                found.append((at, end, sort))
            at = low.find(name, end)
    return sorted(found, key=lambda each: (each[0], -each[1]))


def _is_letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


class _Reader:
    """Reads the values in one text, from its beginning on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._line = (0, -1)

    def value(self, begin: int, end: int, sort: Sort) -> Found | None:
        """The value of the name that the text has from `begin` to `end`."""
        text = self._text
        if sort is Sort.CODE:
            if digits := _DIGITS.match(text, end):
                return (*digits.span("value"), _SECRET)
            if text[end : end + 1].isspace():
                return None
            sort = Sort.BARE
        if rest := _REST_OF_NAME.match(text, end):
            end = rest.end()
        if _is_letter(text[end : end + 1]):
            return None
        close = _CLOSE.match(text, end)
        after = close.end() if close else end
        if sign := _SIGN.match(text, after):
            return self._assigned(sign, sort, is_key=after > end)
        if text[begin:end] == "PASS":
            return None  # of tests
        is_password = sort is Sort.PASSWORD
        if says := _SAYS.match(text, after):
            at = says.end()
            return self._span(at) if says["colon"] or self._is_said(at, is_password) else None
        space = _SPACE.match(text, after)
        if space is None:
            return None
        at = space.end()
        if _is_flag(text, begin) or (is_password and _is_quoted(text, at)):
            return self._span(at, to_space=True)
        if sort is not Sort.BARE and (said := _QUALIFIER.match(text, after)) and self._is_said(said.end(), is_password):
            return self._span(said.end())
        token = _TOKEN.match(text, at)
        return self._span(at, to_space=True) if token and looks_random(token.group()) else None

    def _assigned(self, sign: re.Match[str], sort: Sort, *, is_key: bool) -> Found | None:
        """The value after a sign such as `=` or `:`."""
        at, text = sign.end(), self._text
        if line := _NEXT_LINE.match(text, at):
            return self._on_next_lines(line, sort)
        if typed := _TYPED.match(text, at, at + _CODE_CHARS):
            at = typed.end()
        if is_key and sort is not Sort.BARE and (literal := _LITERAL.match(text, at)):
            return at, literal.end(), _QUOTED
        if sort is Sort.BARE or (
            sign["argument"] and not _SETTER.search(text, max(0, sign.start() - 60), sign.start())
        ):
            user = _USER_BEFORE.match(text, at)
            token = _TOKEN.match(text, at if user is None else user.end())
            if token is None or not looks_random(token.group()):
                return None
        return None if _OBJECT.match(text, at) else self._span(at, limit=_LIMITS.get(sign.lastgroup or ""))

    def _on_next_lines(self, line: re.Match[str], sort: Sort) -> Found | None:
        """A value of one word on the next line, or the more indented lines of a YAML block."""
        text, at = self._text, line.end()
        end = self._line_end(at)
        if text[line.start()] in "|>":
            indent = line["indent"]
            while indent and end < len(text) and text.startswith(indent, end + 1):
                end = self._line_end(end + 1)
            return at, end, _SECRET
        if sort is not Sort.BARE and (items := self._items(line.end("indent") - len(line["indent"]) - 1)):
            return items
        word = _TOKEN.match(text, at)
        if word is None or not _END.match(text, word.end()) or word.group().endswith((":", "{", "(", "[")):
            return None
        if word.group().startswith(("-", "#", "<", "|")) or (sort is Sort.BARE and not looks_random(word.group())):
            return None
        return self._span(at)

    def _items(self, at: int) -> Found | None:
        """The items of a YAML list that begins after the line break at `at`, if they are words."""
        text, found = self._text, None
        while item := _ITEM.match(text, at):
            begin, end = item.span("item")
            if item["indent"] != text[at + 1 : item.end("indent")] or re.search(r":(?:\s|$)", item["item"]):
                break
            found = (begin if found is None else found[0], end, _SECRET)
            at = end
        return found

    def _is_said(self, at: int, is_password: bool) -> bool:
        """Whether the words at `at` are a secret: quoted or random ones, or a single word that is no state of one."""
        if not _is_quoted(self._text, at) and (user := _USER_BEFORE.match(self._text, at)):
            at = user.end()
        token = _TOKEN.match(self._text, at)
        if token is None or _is_quoted(self._text, at) or looks_random(token.group()):
            return token is not None
        word = token.group().strip(_EDGES).lower()
        if not is_password or word in STATES:
            return False
        last = _PHRASE.match(self._text, at) or token
        return _END.match(self._text, last.end()) is not None

    def _span(self, at: int, *, to_space: bool = False, limit: str | None = None) -> Found | None:
        """The value that begins at `at`: to the matching quote, else to the end of the line, to `limit`, or to the next
        space. None for code that computes it."""
        text, end = self._text, self._line_end(at)
        for size in (3, 2, 1):
            if closer := _CLOSERS.get(text[at : at + size]):
                at += size
                if size == 3 and at == end and (close := text.find(closer, at, at + _MOST_QUOTED_LINES)) > 0:
                    return at, close, _SECRET
                end = _closing(text, at, end, closer)
                return None if _is_code(text, at, end) or end <= at else (at, end, _SECRET)
        if to_space and (token := _TOKEN.match(text, at)):
            end = token.end()
        for each in (limit, "\\n"):
            if each and (cut := text.find(each, at, end)) > at:
                end = cut
        while end > at and text[end - 1] in " \t\r":
            end -= 1
        if _is_code(text, at, end) and (fallback := _FALLBACK.search(text, at, end)):
            return self._span(fallback.end())
        return None if _is_code(text, at, end) or end <= at else (at, end, _SECRET)

    def _line_end(self, at: int) -> int:
        """The end of the line of `at`. That of the last line is known, however many names are in it."""
        begin, end = self._line
        if not begin <= at <= end:
            end = self._text.find("\n", at)
            self._line = at, len(self._text) if end < 0 else end
        return self._line[1]


def _closing(text: str, at: int, line_end: int, closer: str) -> int:
    """Where the closing quote stands: one after which no word goes on. Without one, the end of the line."""
    end = text.find(closer, at, line_end)
    while end >= 0:
        after = text[end + len(closer) : end + len(closer) + 1]
        is_escaped = text[end - 1] == "\\" and text[end - 2] != "\\" and closer[0] != "\\"
        if not is_escaped and not (after.isascii() and (after.isalnum() or after in tuple("#$%&*+@^~=_-"))):
            return end
        end = text.find(closer, end + len(closer), line_end)
    return line_end


def _is_code(text: str, begin: int, end: int) -> bool:
    return end - begin <= _CODE_CHARS and _CODE.fullmatch(text, begin, end) is not None


def _is_quoted(text: str, at: int) -> bool:
    return any(text[at : at + size] in _CLOSERS for size in (2, 1))


def _is_flag(text: str, begin: int) -> bool:
    """Whether a name is an option of a command, or a word of .netrc."""
    near = text[max(0, begin - 200) : begin]
    word = near[max(near.rfind(" "), near.rfind("\n")) + 1 :]
    return word.startswith("-") or "machine " in near


def looks_random(token: str) -> bool:
    """Whether a word has the digits, signs and capitals of a secret."""
    if not _NOT_SMALL.search(token):
        return False
    word = token.strip(_EDGES)
    if _CODE.fullmatch(word) or "://" in word:
        return False
    has_digit, has_letter = any(map(str.isdigit, word)), any(map(str.isalpha, word))
    if len(word) >= 6 and ((has_digit and has_letter) or _SYMBOLS.search(word)):
        return True
    changes = sum(one.islower() and other.isupper() for one, other in pairwise(word))
    return (len(word) >= 8 and changes >= 2) or (word.isdigit() and len(word) >= 6)
