"""Replaces personal data and secrets in texts by their kind: `[card]`, `[email]`, ….

Card numbers are those of ISO/IEC 7812 with a valid check digit (Luhn), IBANs those of ISO 13616 with valid check digits
(ISO 7064, mod 97). The other patterns prefer a harmless text too many to a secret too few.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slipstream_core.manifest.capture import Capture

_MIN_DIGITS = 8  # numbers of JSON with fewer digits are none of the known kinds


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
_KNOWN: Mapping[str, tuple[_Kind, ...]] = {
    "secret": (
        _Kind(
            "secret", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
        ),
        # JSON Web Tokens, and keys with the prefixes of well-known services.
        _Kind("secret", re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")),
        _Kind(
            "secret",
            re.compile(
                r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"
                r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
                r"|\bxox[a-z]-[\w-]{10,}|\bhf_[A-Za-z0-9]{16,}|\bAIza[\w-]{30,}"
                r"|\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{12,}|\bslip_[\w-]{16,}"
            ),
        ),
        _Kind(
            "secret",
            re.compile(
                r"(?i)(?<![a-z])(?:pass(?:word|wd|phrase)?|secret|token|api[ _-]?key|access[ _-]?key|auth(?:orization)?"
                r"|bearer|credential)s?[\"']?\s*(?:(?:is|=|:)\s*)(?:bearer\s+|basic\s+)?[\"']?[^\s\"',;]{6,}"
                r"|\bbearer\s+[\w.~+/-]{12,}=*"
            ),
        ),
    ),
    # Each run of letters is tried once, from its beginning: a long text takes linear time.
    "email": (_Kind("email", re.compile(rf"(?<![{_LOCAL}])[{_LOCAL}]++@[\w-]++(?:\.[\w-]++)+")),),
    "iban": (
        _Kind("iban", re.compile(rf"(?<!{_ALNUM})[A-Za-z]{{2}}\d\d(?:[ -]?{_ALNUM}){{11,30}}(?!{_ALNUM})"), _is_iban),
    ),
    "card": (_Kind("card", re.compile(r"(?<!\d)\d(?:[ -]?\d){11,18}(?!\d)"), _is_card),),
    "ip": (
        _Kind("ip", re.compile(rf"(?<![\d.])(?:{_BYTE}\.){{3}}{_BYTE}(?!\.?\d)")),
        _Kind("ip", re.compile(r"(?<![\w:])[0-9A-Fa-f:]{6,39}+(?![\w:])"), _is_ipv6),
    ),
    "phone": (_Kind("phone", re.compile(r"(?<![\w+])(?:\+|00)[1-9]\d?(?:[ ()./-]{0,2}\d){7,12}(?!\d)")),),
}
_ORDER = ("secret", "email", "iban", "card", "ip", "phone")  # an IBAN's digits may be those of a card


class Redactor:
    """Replaces what one policy names. `redactions` counts the replaced texts so far."""

    def __init__(self, capture: Capture) -> None:
        kinds = [kind for name in _ORDER if name in capture.redact for kind in _KNOWN[name]]
        # What a manifest names comes first: a known kind may take a part of it.
        own = [_Kind(each.name, re.compile(each.pattern)) for each in capture.patterns]
        if capture.words:
            words = "|".join(re.escape(word) for word in sorted(capture.words, key=len, reverse=True))
            own.append(_Kind("word", re.compile(rf"(?i)(?<!\w)(?:{words})(?!\w)")))
        self._kinds = (*own, *kinds)
        self.redactions = 0

    def text(self, text: str) -> str:
        """`text` with the kinds' names in place of what they match."""
        for kind in self._kinds:
            text = kind.pattern.sub(lambda match, kind=kind: self._replace(match, kind), text)  # type: ignore[misc]
        return text

    def json(self, node: Any) -> Any:
        """Plain JSON data with redacted texts, field names and numbers. A redacted number becomes a text."""
        if isinstance(node, str):
            return self.text(node)
        if isinstance(node, dict):
            return {self.text(name): self.json(value) for name, value in node.items()}
        if isinstance(node, list):
            return [self.json(item) for item in node]
        if type(node) is int and abs(node) >= 10 ** (_MIN_DIGITS - 1):
            redacted = self.text(str(node))
            return node if redacted == str(node) else redacted
        return node

    def _replace(self, match: re.Match[str], kind: _Kind) -> str:
        found = match.group()
        if kind.is_valid is not None:
            start, end = _valid_part(found, kind.is_valid)
            if start == end:
                return found
            self.redactions += 1
            return f"{found[:start]}[{kind.name}]{found[end:]}"
        self.redactions += 1
        return f"[{kind.name}]"


def _valid_part(text: str, is_valid: Callable[[str], bool]) -> tuple[int, int]:
    """The longest valid part of `text` that begins and ends at a group of it; empty where there is none.

    A number may stand beside another one, such as a card's beside its year of expiry."""
    edges = [0, *(match.start() for match in re.finditer(r"[ -]", text))]
    ends = [*(match.start() for match in re.finditer(r"[ -]", text)), len(text)]
    parts = [(start + (start > 0), end) for start in edges for end in ends if end > start]
    for start, end in sorted(parts, key=lambda part: part[0] - part[1]):
        if is_valid(text[start:end]):
            return start, end
    return 0, 0
