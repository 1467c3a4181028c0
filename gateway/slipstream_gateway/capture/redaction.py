"""Replaces personal data and secrets in texts by their kind: `[card]`, `[email]`, ….

Card numbers are those of ISO/IEC 7812 with a valid check digit (Luhn), IBANs those of ISO 13616 with valid check digits
(ISO 7064, mod 97). The other patterns prefer a harmless text too many to a secret too few.

Texts are compared as Unicode's compatibility form (NFKC), with every space and dash as the plain one, and without
characters that are not seen. JSON inside a text, such as the arguments of a tool, is redacted as JSON.
"""

from __future__ import annotations

import ipaddress
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slipstream_core.manifest.capture import Capture

_ESCAPE = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|(["\\/bfnrt]))')
_ESCAPED = {"b": " ", "f": " ", "n": "\n", "r": "\n", "t": "\t"}
_GAP = re.compile(r"[\s-]+")
_DATA_URL = re.compile(r"data:[\w.+/-]*(?:;[\w=.+-]+)*;base64,[A-Za-z0-9+/=_-]*")


def _is_card(text: str) -> bool:
    digits = [int(digit) for digit in text if digit.isdigit()]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[-2::-2]]
    return 12 <= len(digits) <= 19 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    plain = "".join(char for char in text if char.isalnum()).upper()
    moved = plain[4:] + plain[:4]
    return 15 <= len(plain) <= 34 and int("".join(str(int(char, 36)) for char in moved)) % 97 == 1


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


class _Kind(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    is_valid: Callable[[str], bool] | None = None


_ALNUM = "[0-9A-Za-z]"
_LOCAL = r"\w.!#$%&'*+/=?^`{|}~-"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_BETWEEN = r"[\s-]{0,2}"
_SECRET_NAME = re.compile(
    r"(?:pass(?:word|wd|phrase)|secret|token|api[ _-]?key|access[ _-]?key|private[ _-]?key|credential|authorization)s?",
    re.IGNORECASE,
)
# Each run of characters is tried once, from its beginning, so that a long text takes linear time.
_KNOWN: Mapping[str, tuple[_Kind, ...]] = {
    "secret": (
        _Kind(
            "secret", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [^\n]*|\Z)", re.DOTALL)
        ),
        _Kind("secret", re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?")),  # JSON Web Tokens
        _Kind("secret", re.compile(r"(?<=://)[^\s/@:]*+:[^\s/@]++(?=@)")),  # user and password in a URL
        # Keys with the prefixes of well-known services.
        _Kind(
            "secret",
            re.compile(
                r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"
                r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bnpm_[A-Za-z0-9]{20,}"
                r"|\bxox[a-z]-[\w-]{10,}|\bhf_[A-Za-z0-9]{16,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}|\bwhsec_\w{16,}"
                r"|\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{12,}"
            ),
        ),
        _Kind(
            "secret",
            re.compile(
                rf"{_SECRET_NAME.pattern}[\"']?\s{{0,4}}(?:is|=|:)\s{{0,4}}(?:(?:bearer|basic)\s+)?"
                r"(?:\"[^\"\n]{4,}+\"?|'[^'\n]{4,}+'?|[^\s\"',;]{6,}+)"
                r"|\b(?:bearer|basic)\s{1,4}[\w.~+/-]{12,}+=*",
                re.IGNORECASE,
            ),
        ),
    ),
    "email": (_Kind("email", re.compile(rf"(?<![{_LOCAL}])[{_LOCAL}]++@[\w-]++(?:\.[\w-]++)+")),),
    "iban": (
        _Kind(
            "iban",
            re.compile(rf"(?<!{_ALNUM})[A-Za-z]{{2}}\d\d(?:{_BETWEEN}{_ALNUM}){{11,30}}(?!{_ALNUM})"),
            _is_iban,
        ),
    ),
    "card": (_Kind("card", re.compile(rf"(?<!\d)\d(?:{_BETWEEN}\d){{11,18}}(?!\d)"), _is_card),),
    "ip": (
        _Kind("ip", re.compile(rf"(?<![\d.])(?:{_BYTE}\.){{3}}{_BYTE}(?!\.?\d)")),
        _Kind("ip", re.compile(r"(?<![\w:])[0-9A-Fa-f:]{6,39}+(?![\w:])"), _is_ipv6),
    ),
    "phone": (_Kind("phone", re.compile(r"(?<![\w+])(?:\+|00)[1-9]\d?(?:[\s()./-]{0,3}\d){7,12}(?!\d)")),),
}
_ORDER = ("secret", "email", "iban", "card", "ip", "phone")  # an IBAN's digits may be those of a card


class Redactor:
    """Replaces what one policy names. `redactions` counts the replaced texts so far."""

    def __init__(self, capture: Capture) -> None:
        # What a manifest names comes first: a known kind may take a part of it.
        own = [_Kind(each.name, re.compile(each.pattern)) for each in capture.patterns]
        if capture.words:
            own.append(_Kind("word", _pattern_of(capture.words)))
        self._kinds = (*own, *(kind for name in _ORDER if name in capture.redact for kind in _KNOWN[name]))
        self._hides_secrets = "secret" in capture.redact
        self.redactions = 0

    def text(self, text: str) -> str:
        """`text` with the kinds' names in place of what they match. One in which something is replaced also has plain
        spaces and dashes, and no escapes."""
        folded = _folded(_DATA_URL.sub("[data]", text))
        before = self.redactions
        if "\\" in folded:
            redacted = self._unescaped(folded)
            if self.redactions > before:
                return redacted
        redacted = self._replaced(folded)
        return redacted if self.redactions > before or "[data]" in folded else text

    def json(self, node: Any) -> Any:
        """Plain JSON data with redacted texts, field names and numbers. A redacted number becomes a text."""
        if isinstance(node, str):
            return self.text(node)
        if isinstance(node, dict):
            return {self.text(name): self._value(name, value) for name, value in node.items()}
        if isinstance(node, list):
            return [self.json(item) for item in node]
        if type(node) is int:
            redacted = self._replaced(str(node))
            return node if redacted == str(node) else redacted
        return node

    def hides_across(self, texts: Sequence[str]) -> bool:
        """Whether `texts`, one after the other, have something to replace that none of them has alone."""
        before = self.redactions
        for text in texts:
            self.text(text)
        alone = self.redactions - before
        for separator in ("", " "):
            before = self.redactions
            self.text(separator.join(texts))
            if self.redactions - before > alone:
                return True
        return False

    def _value(self, name: str, value: Any) -> Any:
        """The redacted value of a field."""
        if self._hides_secrets and isinstance(value, str) and value and _SECRET_NAME.search(name):
            self.redactions += 1
            return "[secret]"
        return self.json(value)

    def _unescaped(self, text: str) -> str:
        """The redacted text of JSON, which may be a part of `text` only."""
        if text.lstrip()[:1] in ("{", "[", '"'):
            try:
                return json.dumps(self.json(json.loads(text)), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass
        return self._replaced(_folded(_ESCAPE.sub(_character, text)))

    def _replaced(self, text: str) -> str:
        for kind in self._kinds:
            text = kind.pattern.sub(lambda match, kind=kind: self._replace(match, kind), text)  # type: ignore[misc]
        return text

    def _replace(self, match: re.Match[str], kind: _Kind) -> str:
        found = match.group()
        start, end = (0, len(found)) if kind.is_valid is None else _valid_part(found, kind.is_valid)
        if start == end:
            return found
        self.redactions += 1
        return f"{found[:start]}[{kind.name}]{found[end:]}"


def _pattern_of(words: Sequence[str]) -> re.Pattern[str]:
    """Matches any of `words`, in any case of letters and with any space between their parts."""
    longest_first = sorted((_folded(word) for word in words), key=len, reverse=True)
    parts = "|".join(r"\s+".join(re.escape(part) for part in word.split()) for word in longest_first if word.split())
    return re.compile(rf"(?<!\w)(?:{parts})(?!\w)", re.IGNORECASE)


def _folded(text: str) -> str:
    if text.isascii():
        return text
    return "".join(map(_plain, unicodedata.normalize("NFKC", text)))


def _plain(char: str) -> str:
    match unicodedata.category(char):
        case "Zs":
            return " "
        case "Pd":
            return "-"
        case "Cf":  # such as a zero-width space
            return ""
        case _:
            return char


def _character(match: re.Match[str]) -> str:
    code, letter = match.groups()
    return chr(int(code, 16)) if code else _ESCAPED.get(letter, letter)


def _valid_part(text: str, is_valid: Callable[[str], bool]) -> tuple[int, int]:
    """The longest valid part of `text` that begins and ends at a group of it; empty where there is none.

    A number may stand beside another one, such as a card's beside its year of expiry."""
    gaps = [match.span() for match in _GAP.finditer(text)]
    starts, ends = [0, *(end for _, end in gaps)], [*(start for start, _ in gaps), len(text)]
    parts = [(start, end) for start in starts for end in ends if end > start]
    for start, end in sorted(parts, key=lambda part: part[0] - part[1]):
        if is_valid(text[start:end]):
            return start, end
    return 0, 0
