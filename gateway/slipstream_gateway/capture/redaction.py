"""Replaces personal data and secrets in texts by their kind: `[card]`, `[email]`, ….

Card numbers are those of ISO/IEC 7812 with a valid check digit (Luhn), IBANs those of ISO 13616 with valid check digits
(ISO 7064, mod 97). Other secrets have the form of a well-known service's keys, or stand beside a word such as password.

Texts are compared in Unicode's compatibility form (NFKC), with every space and dash as the plain one, and without
characters that are not seen. JSON inside a text, such as the arguments of a tool, is redacted as JSON.
"""

from __future__ import annotations

import ipaddress
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from slipstream_core.manifest.capture import Capture

_ESCAPE = re.compile(r'\\(?:u([dD][89abAB]\w\w)\\u([dD][c-fC-F]\w\w)|u([0-9A-Fa-f]{4})|(["\\/bfnrt]))')
_ESCAPED = {"b": " ", "f": " ", "n": "\n", "r": "\n", "t": "\t"}
_GAP = re.compile(r"[\s-]+")
_DATA_URL = re.compile(r"data:[\w.+/-]*(?:;[\w=.+-]+)*;base64,[A-Za-z0-9+/=_-]*")
_EDGE_CHARS = 200
_OPEN_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?!.*-----END )", re.DOTALL)
_WORDS_OF_FIELDS = (
    "password", "passwd", "passphrase", "secret", "secretkey", "apikey", "accesskey", "privatekey", "accesstoken",
    "authtoken", "refreshtoken", "authorization",
)  # fmt: skip


def _is_card(text: str) -> bool:
    digits = [int(digit) for digit in text if digit.isdigit()]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    plain = "".join(char for char in text if char.isalnum()).upper()
    moved = plain[4:] + plain[:4]
    return 15 <= len(plain) <= 34 and int("".join(str(int(char, 36)) for char in moved)) % 97 == 1


def _is_ip(text: str) -> bool:
    """An address of a machine, not of every machine itself. C++'s `abc::def` is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    is_address = address.version == 4 or text.count(":") > 2 or any(map(str.isdigit, text.partition(":")[0]))
    return is_address and not (address.is_loopback or address.is_unspecified)


def _is_random(text: str) -> bool:
    """Whether `text` changes between small letters, capitals and digits as no identifier does."""
    kinds = [(char.isdigit(), char.isupper()) for char in text if char.isalnum()]
    changes = sum(one != other for one, other in pairwise(kinds))
    return len(set(kinds)) > 1 and changes >= len(kinds) / 5


def _is_assigned(text: str) -> bool:
    """Whether a value beside `password` and the like is one: quoted, or with a digit, or random; no call, no type."""
    value = re.split(r"=|:|\bis\b", text, maxsplit=1)[1].strip()
    quoted = value[:1] in "\"'"
    value = value.strip("\"'")
    if value[:1] in "<$%{" or "(" in value or "[" in value:
        return False
    return (quoted and len(value) > 3) or any(map(str.isdigit, value)) or (len(value) > 15 and _is_random(value))


class _Kind(NamedTuple):
    """`is_valid` decides about the text of a match. With `groups` it decides about each beginning of it that ends at a
    gap, from the longest on: another number may stand beside it."""

    name: str
    pattern: re.Pattern[str]
    is_valid: Callable[[str], bool] | None = None
    groups: bool = False


_ALNUM = "[0-9A-Za-z]"
_LOCAL = r"\w.!#$%&'*+/=?^{|}~-"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_BETWEEN = r"[\s-]{0,2}"
# Each run of characters is tried once, from its beginning, so that a long text takes linear time.
_KNOWN: Mapping[str, tuple[_Kind, ...]] = {
    "secret": (
        _Kind(
            "secret", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [^\n]*|\Z)", re.DOTALL)
        ),
        _Kind("secret", re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?")),  # JSON Web Tokens
        _Kind("secret", re.compile(r"(?<=://)[^\s/@:]*+:[^\s/@]++(?=@)")),  # user and password in a URL
        # Keys with the prefixes of well-known services.
        _Kind("secret", re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}+"), _is_random),
        _Kind(
            "secret",
            re.compile(
                r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bnpm_[A-Za-z0-9]{20,}"
                r"|\bxox[a-z]-[\w-]{10,}|\bhf_[A-Za-z0-9]{16,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}|\bwhsec_\w{16,}"
                r"|\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{12,}"
            ),
        ),
        _Kind("secret", re.compile(r"\b(?:bearer|basic)\s{1,4}[\w.~+/-]{12,}+=*", re.IGNORECASE), _is_random),
        _Kind(
            "secret",
            re.compile(
                r"(?:pass(?:word|wd|phrase)|secret|(?:api|access|private|secret)[ _-]?key|(?<![a-z_])token"
                r"|(?:access|auth|refresh)[ _-]?token)[\"']?\s{0,4}(?:=|:|\bis\b)\s{0,4}"
                r"(?:\"[^\"\n]{4,}+\"?|'[^'\n]{4,}+'?|[^\s\"',;]{6,}+)",
                re.IGNORECASE,
            ),
            _is_assigned,
        ),
    ),
    "email": (_Kind("email", re.compile(rf"(?<![{_LOCAL}])[{_LOCAL}]++@(?:[\w-]++\.)+[^\W\d_]{{2,}}+(?![\w-]|\.\w)")),),
    "iban": (
        _Kind(
            "iban",
            re.compile(rf"(?<!{_ALNUM})[A-Za-z]{{2}}\d\d(?:{_BETWEEN}{_ALNUM}){{11,30}}(?!{_ALNUM})"),
            _is_iban,
            groups=True,
        ),
    ),
    "card": (
        _Kind("card", re.compile(r"(?<!\d)[2-6]\d{2,18}(?:[\s-]{1,2}\d{3,15}){0,6}(?!\d)"), _is_card, groups=True),
    ),
    "ip": (
        _Kind("ip", re.compile(rf"(?<![\w.-])(?<!(?<!/)/)(?:{_BYTE}\.){{3}}{_BYTE}(?!\.?\d)"), _is_ip),
        _Kind("ip", re.compile(r"(?<![\w:])[0-9A-Fa-f:]{6,39}+(?![\w:])"), _is_ip),
    ),
    "phone": (
        _Kind("phone", re.compile(r"(?<![\w+])(?:\+[1-9]\d?|00[1-9]\d?[\s()./-])(?:[\s()./-]{0,3}\d){7,12}(?!\d)")),
    ),
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
        """`text` with the kinds' names in place of what they match, and `[data]` in place of media in URLs. One in
        which something is replaced also has plain spaces and dashes."""
        before = self.redactions
        folded, data = _DATA_URL.subn("[data]", _folded(text))
        self.redactions += data
        redacted = self._of_json(folded) if folded.lstrip()[:1] in ("{", "[") else None
        if redacted is None:
            redacted = self._of_prose(folded)
        return redacted if self.redactions > before else text

    def json(self, node: Any) -> Any:
        """Plain JSON data with redacted texts, field names and numbers. A redacted number becomes a text."""
        if isinstance(node, str):
            return self.text(node)
        if isinstance(node, dict):
            return {self.text(name): self._value(name, value) for name, value in node.items()}
        if isinstance(node, list):
            return [self.json(item) for item in node]
        if type(node) is int:
            redacted, found = self._replaced(str(node))
            self.redactions += found
            return redacted if found else node
        return node

    def hides_between(self, one: str, other: str) -> bool:
        """Whether `one` and `other`, one after the other, have something to replace of which each has a part."""
        if self._hides_secrets and _OPEN_KEY.search(one):
            return True
        before, after = _folded(one[-_EDGE_CHARS:]), _folded(other[:_EDGE_CHARS])
        return any(self._crosses(f"{before}{gap}{after}", len(before), len(before) + len(gap)) for gap in ("", " "))

    def _crosses(self, text: str, end: int, start: int) -> bool:
        """Whether something to replace begins before `end` and ends after `start`."""
        return any(begin < end and last > start for kind in self._kinds for begin, last in _found(kind, text))

    def _value(self, name: str, value: Any) -> Any:
        """The redacted value of a field. A text or number under a name such as `password` is a secret."""
        if not self._hides_secrets or not _names_a_secret(name):
            return self.json(value)
        if isinstance(value, list):
            return [self._value(name, item) for item in value]
        if isinstance(value, dict) or value in (None, "", True, False):
            return self.json(value)
        self.redactions += 1
        return "[secret]"

    def _of_json(self, text: str) -> str | None:
        """The redacted text of an object or a list; None if `text` is not JSON."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return None
        redacted, found = self._replaced(json.dumps(self.json(data), ensure_ascii=False))
        self.redactions += found
        return redacted

    def _of_prose(self, text: str) -> str:
        """The redacted text, which may have JSON in it. Escapes stay, unless they hide something."""
        redacted, found = self._replaced(text)
        if "\\" in text:
            unescaped, more = self._replaced(_folded(_ESCAPE.sub(_character, text)))
            if more > found:
                redacted, found = unescaped, more
        self.redactions += found
        return redacted

    def _replaced(self, text: str) -> tuple[str, int]:
        """`text` with replacements, and their number."""
        count = 0
        for kind in self._kinds:
            parts, done = [], 0
            for begin, end in _found(kind, text):
                parts += [text[done:begin], f"[{kind.name}]"]
                done = end
                count += 1
            if parts:
                text = "".join([*parts, text[done:]])
        return text, count


def _found(kind: _Kind, text: str) -> list[tuple[int, int]]:
    """Where `text` has a text of `kind`."""
    found, at = [], 0
    while match := kind.pattern.search(text, at):
        begin, at = match.span()
        if kind.is_valid is None:
            found.append((begin, at))
        elif not kind.groups:
            if kind.is_valid(match.group()):
                found.append((begin, at))
        else:
            gaps = [gap.span() for gap in _GAP.finditer(text, begin, at)]
            ends = [at, *(gap for gap, _ in reversed(gaps))]
            end = next((end for end in ends if kind.is_valid(text[begin:end])), None)
            if end is not None:
                found.append((begin, end))
            # Where this is none, one may begin at its next group.
            at = end or (gaps[0][1] if gaps else at)
        at = max(at, begin + 1)
    return found


def _names_a_secret(name: str) -> bool:
    plain = re.sub(r"[^a-z]", "", name.lower())
    return plain == "token" or plain.endswith(_WORDS_OF_FIELDS)


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
            return "-" if char == "\u2212" else char  # the minus sign


def _character(match: re.Match[str]) -> str:
    high, low, code, letter = match.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if code:
        char = chr(int(code, 16))
        return "\ufffd" if "\ud800" <= char <= "\udfff" else char
    return _ESCAPED.get(letter, letter)
