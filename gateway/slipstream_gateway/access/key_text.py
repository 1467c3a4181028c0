"""The text form of an API key, and the hash that is stored for it.

`sk-slip-<id>-<secret><checksum>`: with the prefix, scanners of repositories and logs find leaked keys; the public id
identifies a key in lists, metrics and logs; the secret has 256 random bits; the checksum (CRC-32, as in GitHub's
tokens) lets a scanner recognise a key offline.

A key is stored as HMAC-SHA-256 of its whole text under the server's pepper. A slow hash such as argon2 is meant for
human-chosen secrets, which can be guessed; 256 random bits cannot, and the check runs in every request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from typing import NamedTuple

PREFIX = "sk-slip-"
ID_CHARS = 10
MIN_PEPPER_BYTES = 32
_SECRET_CHARS = 43  # 62^43 > 2^256
_CHECKSUM_CHARS = 6  # 62^6 > 2^32
_ID_ALPHABET = string.ascii_lowercase + string.digits
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_KEY = re.compile(rf"{PREFIX}([a-z0-9]{{{ID_CHARS}}})-[0-9A-Za-z]{{{_SECRET_CHARS + _CHECKSUM_CHARS}}}")
_PEPPER_ID_CHARS = 16


class NewKey(NamedTuple):
    """A fresh key. `text` is shown once, never stored, and not part of the `repr`."""

    id: str
    text: str

    def __repr__(self) -> str:
        return f"NewKey(id={self.id!r})"


def new_key(key_id: str | None = None) -> NewKey:
    """A key with a fresh secret, of an existing or a fresh id."""
    key_id = key_id or "".join(secrets.choice(_ID_ALPHABET) for _ in range(ID_CHARS))
    secret = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_CHARS))
    body = f"{PREFIX}{key_id}-{secret}"
    return NewKey(key_id, body + checksum(body))


def checksum(body: str) -> str:
    """The checksum at the end of a key that begins with `body`."""
    value, digits = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM_CHARS):
        value, digit = divmod(value, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def id_of(text: str) -> str | None:
    """The public id within a key; None if `text` does not have the form of a key."""
    match = _KEY.fullmatch(text)
    return match[1] if match is not None else None


def digest(pepper: bytes, text: str) -> bytes:
    """The stored hash of a key."""
    return hmac.digest(pepper, text.encode(), hashlib.sha256)


def pepper_id(pepper: bytes) -> str:
    """An id of a pepper that does not reveal it. It detects a wrong pepper, under which all keys would be unknown
    without an explanation."""
    return hmac.digest(pepper, b"slipstream pepper", hashlib.sha256).hex()[:_PEPPER_ID_CHARS]
