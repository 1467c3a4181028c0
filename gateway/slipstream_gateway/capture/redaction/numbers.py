"""Finds card numbers, IBANs, phone numbers, IP and e-mail addresses.

Card numbers are those of ISO/IEC 7812 with the length of their issuer and a valid check digit (Luhn), IBANs those of
ISO 13616 with the length of their country and valid check digits (ISO 7064, mod 97). Each place of a text is looked at
once, and no further than the longest number.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from itertools import pairwise

Span = tuple[int, int]
_GAP = r"[\s.\-/_|,·•:*]"
_CARD = re.compile(rf"(?<![0-9])[2-6][0-9]{{2,18}}(?:{_GAP}{{1,5}}[0-9]{{1,15}}){{0,6}}")
_DIGITS = re.compile(r"[0-9]+")
_PLAIN_GAP = re.compile(r"[\s-]{1,3}")
_ISSUERS = re.compile(
    r"(?:4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})|(?:5[1-5]|2[2-7])[0-9]{14}|3[47][0-9]{13}|3(?:0[0-5]|[689][0-9])[0-9]{11,16}"
    r"|35[0-9]{14,17}|(?:6011|64[4-9][0-9]|65[0-9]{2}|62[0-9]{2}|8[0-9]{3})[0-9]{12,15}|(?:50|5[6-9]|6[0-9])[0-9]{11,17})"
)
_DOUBLED = str.maketrans("0123456789", "0246813579")  # twice a digit, less 9 above 9
_IBAN_LENGTHS = {
    country: length
    for length, countries in (
        (15, "NO"), (16, "BE"), (18, "DK FI FK FO GL NL SD"), (19, "MK SI"), (20, "AT BA EE KZ LT LU MN XK"),
        (21, "CH HR LI LV"), (22, "BG BH CR DE GB GE IE ME RS VA"), (23, "AE GI IL IQ OM SO TL"),
        (24, "AD CZ ES MD PK RO SA SE SK TN VG"), (25, "LY PT ST"), (26, "IS TR"),
        (27, "DJ FR GR IT MC MR SM"), (28, "AL AZ BY CY DO GT HN HU LB NI PL SV"), (29, "BR EG PS QA UA"),
        (30, "JO KW MU YE"), (31, "MT SC"), (32, "LC"), (33, "RU"),
    )
    for country in countries.split()
}  # fmt: skip
_IBAN_BEGIN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}(?=.{11})", re.DOTALL)
_IBAN_REST = {
    length: re.compile(rf"(?:{_GAP}{{0,5}}[A-Za-z0-9]){{{length - 4}}}(?![A-Za-z0-9])")
    for length in set(_IBAN_LENGTHS.values())
}
_VALUES = {ord(char): str(int(char, 36)) for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_PHONE = re.compile(r"(?<![A-Za-z0-9_+])(?:\+[1-9][0-9]?|00[1-9][0-9]?[ ()./-])(?:[ ()./-]{0,3}[0-9]){7,12}(?![0-9])")
_LOCAL = r"A-Za-z0-9._%+'\u00c0-\u024f-"
_EMAIL = re.compile(
    rf"(?<![{_LOCAL}])(?<!\\(?=[bfnrt]))[{_LOCAL}]++@(?:[A-Za-z0-9\u00c0-\u024f-]++\.)+[A-Za-z\u00c0-\u024f]{{2,}}+(?![A-Za-z0-9-]|\.[A-Za-z0-9])"
)
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_IPV4 = re.compile(rf"(?<![A-Za-z0-9_.-])(?<!(?<!/)/)(?:{_BYTE}\.){{3}}{_BYTE}(?![0-9]|\.[0-9])")
_IPV6 = re.compile(r"(?<![A-Za-z0-9_:])[0-9A-Fa-f:]{6,45}+(?![A-Za-z0-9_:])")


def cards(text: str) -> Iterator[Span]:
    """Numbers of cards, in groups with anything usual between them."""
    at = 0
    while match := _CARD.search(text, at):
        groups = [group.span() for group in _DIGITS.finditer(text, *match.span())]
        ends = [end for end, size in _possible(groups) if _is_card(text, groups[:end], size)]
        if ends:
            yield match.start(), groups[ends[-1] - 1][1]
        at = groups[ends[-1] - 1 if ends else 0][1]  # one may begin at the next group


def _possible(groups: list[Span]) -> Iterator[tuple[int, int]]:
    """How many groups have as many digits as a card, and how many digits these are."""
    size = 0
    for count, (begin, end) in enumerate(groups, 1):
        size += end - begin
        if 13 <= size <= 19:
            yield count, size


def _is_card(text: str, groups: list[Span], size: int) -> bool:
    number = "".join([text[begin:end] for begin, end in groups])
    if not _ISSUERS.fullmatch(number) or number.count(number[0]) == size:
        return False
    if (sum(map(int, number[-1::-2])) + sum(map(int, number[-2::-2].translate(_DOUBLED)))) % 10:
        return False
    sizes = [end - begin for begin, end in groups]
    gaps = [text[one[1] : other[0]] for one, other in pairwise(groups)]
    is_usual = set(sizes[:-1]) <= {4} or sizes in ([4, 6, 5], [4, 6, 4])
    return is_usual or (min(sizes) >= 3 and all(map(_PLAIN_GAP.fullmatch, gaps)))


def ibans(text: str) -> Iterator[Span]:
    """IBANs, in groups with anything usual between them."""
    for match in _IBAN_BEGIN.finditer(text):
        length = _IBAN_LENGTHS.get(match.group()[:2].upper())
        rest = None if length is None else _IBAN_REST[length].match(text, match.end())
        if rest is not None and _is_iban(match.group(), rest.group()):
            yield match.start(), rest.end()


def _is_iban(head: str, rest: str) -> bool:
    plain = "".join(filter(str.isalnum, rest)) + head
    return int(plain.upper().translate(_VALUES)) % 97 == 1


def phones(text: str) -> Iterator[Span]:
    """Phone numbers with the code of a country."""
    return (match.span() for match in _PHONE.finditer(text))


def emails(text: str) -> Iterator[Span]:
    """E-mail addresses."""
    return (match.span() for match in _EMAIL.finditer(text))


def addresses(text: str) -> Iterator[Span]:
    """IP addresses of machines, not of every machine itself."""
    for match in _IPV4.finditer(text):
        if _is_ip(match.group()):
            yield match.span()
    for match in _IPV6.finditer(text):
        begin, end = match.span()
        last = text.rfind(":", begin, end)  # a colon or a port may follow
        if ends := [each for each in (end, last) if begin < each and _is_ip(text[begin:each])]:
            yield begin, ends[0]


def _is_ip(text: str) -> bool:
    """C++'s `abc::def` is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    is_address = address.version == 4 or text.count(":") > 2 or any(map(str.isdigit, text.partition(":")[0]))
    return is_address and not (address.is_loopback or address.is_unspecified)
