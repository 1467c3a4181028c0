"""The keys in force: an immutable snapshot of the key file, swapped as a whole."""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import NamedTuple

import msgspec
from slipstream_core.errors import CommandError, NotAuthenticated, named_os_errors
from slipstream_core.file_reading import read_regular

from slipstream_gateway.access.key_text import MIN_PEPPER_BYTES, digest, id_of, pepper_id
from slipstream_gateway.access.principal import Prices, Principal, compile_principal
from slipstream_gateway.access.records import (
    MAX_FILE_BYTES,
    AccessFile,
    Jwt,
    KeyRecord,
    aware,
    check_location,
    parse_access,
)

INCORRECT = "Incorrect API key provided."
_FOREVER_S = float("inf")
_HASH_BYTES = 32


class _Entry(NamedTuple):
    """A key in comparable form. `until_s` is its expiry, `former_until_s` that of its former hash."""

    principal: Principal | None
    hash: bytes
    until_s: float
    former: bytes
    former_until_s: float


class Keyring:
    """Keys, prices and rules for tokens of one version of the file."""

    def __init__(self, file: AccessFile, pepper: bytes) -> None:
        self._pepper = pepper
        self._entries = {key.id: _entry(key) for key in file.keys}
        self._nobody = _Entry(None, secrets.token_bytes(_HASH_BYTES), 0.0, secrets.token_bytes(_HASH_BYTES), 0.0)
        self.prices = Prices(file.prices)
        self.jwt: Jwt | None = file.jwt

    def __len__(self) -> int:
        return len(self._entries)

    def limited(self, now_s: float) -> list[Principal]:
        """The keys that are valid and have limits, in the file's order."""
        entries = self._entries.values()
        return [
            entry.principal
            for entry in entries
            if entry.principal is not None and now_s < entry.until_s and not entry.principal.limits.is_open
        ]

    def authenticate(self, text: str, now_s: float) -> Principal:
        """The caller whose key is `text`. Raises `NotAuthenticated`, always with the same message.

        A wrong secret, an unknown id, a revoked and an expired key take the same steps: one hash, two comparisons in
        constant time. So the response time does not reveal which ids exist.
        """
        key_id = id_of(text)
        if key_id is None:
            raise NotAuthenticated(INCORRECT)
        entry = self._entries.get(key_id, self._nobody)
        given = digest(self._pepper, text)
        current = hmac.compare_digest(given, entry.hash)
        former = hmac.compare_digest(given, entry.former)
        valid = (current or (former and now_s < entry.former_until_s)) and now_s < entry.until_s
        if not valid or entry.principal is None:
            raise NotAuthenticated(INCORRECT)
        return entry.principal


def _entry(key: KeyRecord) -> _Entry:
    until_s = aware(key.expires).timestamp() if key.expires is not None else _FOREVER_S
    former = key.former
    return _Entry(
        principal=compile_principal(key.id, key.name, key.scopes, key.priority, key.limits),
        hash=bytes.fromhex(key.hash),
        until_s=0.0 if key.revoked is not None else until_s,
        former=bytes.fromhex(former.hash) if former is not None else secrets.token_bytes(_HASH_BYTES),
        former_until_s=aware(former.until).timestamp() if former is not None else 0.0,
    )


def pepper_path(keys: Path, pepper: Path | None) -> Path:
    """The path of a key file's pepper: beside it by default."""
    return pepper or keys.with_name(f"{keys.name}.pepper")


def open_keyring(data: bytes, *, name: str, pepper: Path, folder: Path) -> Keyring:
    """The keyring of `data` under the pepper in a file. A relative path of an issuer's key file starts at `folder`.
    Raises `CommandError`."""
    file = parse_access(data, name=name)
    if file.jwt is not None and not check_location(file.jwt.jwks):
        placed = msgspec.structs.replace(file.jwt, jwks=str(folder / file.jwt.jwks))
        file = msgspec.structs.replace(file, jwt=placed)
    if not file.keys:
        return Keyring(file, secrets.token_bytes(MIN_PEPPER_BYTES))
    secret = read_pepper(pepper)
    check_pepper(file, secret, name=name, pepper_name=str(pepper))
    return Keyring(file, secret)


def check_pepper(file: AccessFile, pepper: bytes, *, name: str, pepper_name: str) -> None:
    """Raises `CommandError` if `file` has keys that were hashed under another pepper."""
    if file.keys and pepper_id(pepper) != file.pepper:
        raise CommandError(f"{name}: its keys were hashed under another pepper than the one in {pepper_name}.")


def read_pepper(path: Path) -> bytes:
    """Raises `CommandError`."""
    secret = read_file(path).strip()
    if len(secret) < MIN_PEPPER_BYTES:
        raise CommandError(f"{path}: a pepper must have at least {MIN_PEPPER_BYTES} bytes, got {len(secret)}.")
    return secret


def read_file(path: Path) -> bytes:
    """The content as far as `parse_access` accepts it, plus one byte if it is too large. Raises `CommandError`."""
    with named_os_errors(f"{path}: cannot be read"):
        return read_regular(path, max_bytes=MAX_FILE_BYTES + 1)
