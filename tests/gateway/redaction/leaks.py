"""Whether a text shows a secret: a third of it is enough, from 6 characters on (of words 12), and 20 always are."""

from __future__ import annotations

import unicodedata

from tests.gateway.redaction.planting import Planted


def is_shown(planted: Planted, text: str) -> bool:
    """Of a number the digits count, in every script and with anything between them."""
    if planted.digits or planted.kind == "phone":
        secret, text = _digits(planted.secret), _digits(text)
        pieces = 6
    else:
        secret, pieces = (
            planted.secret,
            max(12 if planted.kind == "passphrase" else 6, min(20, len(planted.secret) // 3)),
        )
    return any(secret[at : at + pieces] in text for at in range(max(1, len(secret) - pieces + 1)))


def _digits(text: str) -> str:
    return "".join(str(unicodedata.digit(char)) for char in text if unicodedata.digit(char, None) is not None)
