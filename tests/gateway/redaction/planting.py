"""Texts with planted secrets, made without the rules that must find them.

Secrets are Faker's, or random in the formats that services document. A template of `development.yaml` or
`held_out.yaml` stands between sentences of its language.
"""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from xml.sax.saxutils import escape

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from faker import Faker

from tests.gateway.redaction.service_keys import CLASSES, FORMATS, service_key

Random = random.Random
LOCALES = {
    "en": "en_US", "de": "de_DE", "es": "es_ES", "ja": "ja_JP", "ru": "ru_RU",
    "fr": "fr_FR", "pl": "pl_PL", "zh": "zh_CN", "tr": "tr_TR",
}  # fmt: skip
_QUOTES = "\"'`\\|<>«»「」“”"
_DIGITS = {
    "persian": "۰۱۲۳۴۵۶۷۸۹", "arabic": "٠١٢٣٤٥٦٧٨٩", "devanagari": "०१२३४५६७८९", "full width": "０１２３４５６７８９",
    "bengali": "০১২৩৪৫৬৭৮৯", "thai": "๐๑๒๓๔๕๖๗๘๙",
}  # fmt: skip
_BETWEEN = (
    "",
    "",
    " ",
    " ",
    "-",
    ".",
    "\u00a0",
    "\u2011",
    "/",
    " - ",
    " | ",
    "\u200b",
    "_",
    "·",
    "  ",
    "</td><td>",
    "** **",
)


class Planted(NamedTuple):
    """One text. `secret` is as it stands in `text`; `digits` are those of a number."""

    kind: str
    language: str
    text: str
    secret: str
    digits: str = ""


@cache
def _faker(language: str) -> Faker:
    return Faker(LOCALES[language])


def _password(rng: Random, language: str) -> str:
    """Random printable characters mostly, else what people choose."""
    match rng.randrange(10):
        case 0:
            return f"{_faker('en').word().capitalize()}{rng.randrange(10, 2030)}{rng.choice('!?.#')}"
        case 1:
            return "".join(rng.choices(string.ascii_lowercase, k=rng.randrange(8, 14)))
        case 2:
            return "".join(rng.choices(CLASSES["A"], k=rng.randrange(10, 24)))
        case _:
            allowed = [
                char for char in string.digits + string.ascii_letters + string.punctuation if char not in _QUOTES
            ]
            return "".join(rng.choices(allowed, k=rng.randrange(8, 24)))


def _plain_password(rng: Random, language: str) -> str:
    """One without the characters that end a value in a connection string or a cookie."""
    return "".join(rng.choices(CLASSES["A"] + "!#$*+-._~^", k=rng.randrange(10, 28)))


def _passphrase(rng: Random, language: str) -> str:
    words = _faker("en").words(rng.randrange(4, 7))
    return rng.choice((" ", "-", " ")).join(words)


def _jwt(rng: Random, language: str) -> str:
    parts = (
        b'{"alg":"HS256","typ":"JWT"}',
        f'{{"sub":"{rng.randrange(10**9)}","iat":{rng.randrange(10**9)}}}'.encode(),
    )
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (*parts, rng.randbytes(32)))


@cache
def _private_keys() -> tuple[str, ...]:
    encrypted = serialization.BestAvailableEncryption(b"phrase")
    keys = (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1()))
    made = [
        key.private_bytes(serialization.Encoding.PEM, form, encryption)
        for key in keys
        for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL)
        for encryption in (serialization.NoEncryption(), encrypted)
    ]
    ssh = ed25519.Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.OpenSSH
    made.append(ssh.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return tuple(key.decode().strip() for key in made)


def _cookie(rng: Random, language: str) -> str:
    return rng.choice((f"s%3A{_of('w', 32, rng)}.{_of('A', 43, rng)}", _of("a", 32, rng), _of("h", 40, rng)))


def _encoded(rng: Random, language: str) -> str:
    return base64.b64encode(f"{_faker('en').user_name()}:{_password(rng, language)}".encode()).decode()


def _of(name: str, count: int, rng: Random) -> str:
    return "".join(rng.choices(CLASSES[name], k=count))


def _grouped(number: str, rng: Random) -> str:
    """In groups of four, and in the digits of some script."""
    between = rng.choice(_BETWEEN)
    text = between.join(number[at : at + 4] for at in range(0, len(number), 4))
    script = rng.choice((*_DIGITS.values(), *[string.digits] * 14))
    return text.translate(str.maketrans(string.digits, script))


def _card(rng: Random, language: str) -> str:
    return _faker("en").credit_card_number(rng.choice(("visa16", "mastercard", "amex", "discover", "jcb16", "diners")))


def _iban(rng: Random, language: str) -> str:
    locale = rng.choice(("de_DE", "fr_FR", "es_ES", "it_IT", "pl_PL", "nl_NL", "en_GB", "tr_TR"))
    return _national(locale).iban()


@cache
def _national(locale: str) -> Faker:
    return Faker(locale)


def _email(rng: Random, language: str) -> str:
    address = _faker(rng.choice(("en", "de", "fr", "pl"))).email().replace("example", rng.choice(("acme", "mail.acme")))
    how = rng.randrange(10)
    dressed = {0: address.upper(), 1: address.replace("@", "%40"), 2: address.replace("@", "&#64;")}
    dressed |= {
        3: address.replace("@", "\u200b@"),
        4: address.replace("@", "\\u0040"),
        5: address.replace("@", "\uff20"),
    }
    return dressed.get(how, address)


def _phone(rng: Random, language: str) -> str:
    number = rng.choice(("+49 30 {d7}", "+49 (0)89 {d6}", "+1 212 555 {d4}", "+1-415-555-{d4}", "+44 20 7946 {d4}",
                         "+7 495 {d3}-{d2}-{d2}", "+34 91 {d3} {d2} {d2}", "+813{d8}", "0033 1 {d2} {d2} {d2} {d2}",
                         "+48 600 {d3} {d3}", "+86 138 {d4} {d4}", "+90.532.{d3}.{d4}"))  # fmt: skip
    for size in "23467 8".replace(" ", ""):
        while f"{{d{size}}}" in number:
            number = number.replace(f"{{d{size}}}", _of("d", int(size), rng), 1)
    script = rng.choice((*_DIGITS.values(), *[string.digits] * 14))
    return number.translate(str.maketrans(string.digits, script))


def _ip(rng: Random, language: str) -> str:
    fake = _faker("en")
    return fake.ipv4_public() if rng.random() < 0.7 else fake.ipv6()


KINDS: Mapping[str, Callable[[Random, str], str]] = {
    "password_quoted": _password,
    "password_unquoted": _password,
    "passphrase": _passphrase,
    "service_key": lambda rng, _: service_key(rng.choice(sorted(FORMATS)), rng),
    "bearer": lambda rng, _: _of(rng.choice("Aahw"), rng.randrange(20, 64), rng),
    "jwt": _jwt,
    "private_key": lambda rng, _: rng.choice(_private_keys()),
    "url_credentials": lambda rng, language: quote(_password(rng, language), safe=""),
    "connection_string": _plain_password,
    "cookie": _cookie,
    "encoded": _encoded,
    "card": _card,
    "iban": _iban,
    "email": _email,
    "phone": _phone,
    "ip": _ip,
}
_NUMBERS = ("card", "iban")


def planted(templates: Path, count: int, seed: int) -> Iterator[Planted]:
    """`count` texts of each kind, with the languages by turns."""
    known: Mapping[str, Mapping[str, list[str]]] = yaml.safe_load(templates.read_text(encoding="utf-8"))
    rng = random.Random(seed)
    Faker.seed(seed)
    for kind, by_language in known.items():
        languages = list(by_language)
        for index in range(count):
            language = languages[index % len(languages)]
            yield _plant(kind, language, rng.choice(by_language[language]), rng)


def _plant(kind: str, language: str, template: str, rng: Random) -> Planted:
    secret = KINDS[kind](rng, language)
    digits = secret if kind in _NUMBERS else ""
    if kind in _NUMBERS:
        secret = _grouped(secret, rng)
    elif "</" in template and "&" not in secret:
        secret = escape(secret)
    elif kind == "private_key" and '": "' in template:
        secret = secret.replace("\n", "\\n")
    before, after = (_faker(language).sentence() if rng.random() < 0.6 else "" for _ in range(2))
    text = "\n".join(filter(None, (before, template.replace("§", secret), after)))
    return Planted(kind, language, text, secret, digits)
