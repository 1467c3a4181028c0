"""The operations of `slipstream keys` on a key file. Pure: a file in, a file out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec
from slipstream_core.errors import CommandError
from slipstream_gateway.access.key_text import NewKey, digest, new_key, pepper_id
from slipstream_gateway.access.records import AccessFile, Former, KeyRecord, Price


def create(file: AccessFile, pepper: bytes, key: NewKey, record: KeyRecord) -> AccessFile:
    """`file` with an additional key. Raises `CommandError` if an active key already has its name."""
    if record.name and any(other.name == record.name and other.revoked is None for other in file.keys):
        raise CommandError(f"a key '{record.name}' already exists: revoke or rotate it, or choose another name.")
    hashed = msgspec.structs.replace(record, id=key.id, hash=digest(pepper, key.text).hex())
    return msgspec.structs.replace(file, pepper=pepper_id(pepper), keys=(*file.keys, hashed))


def revoke(file: AccessFile, which: str, now: datetime) -> AccessFile:
    """`file` with a key revoked. Raises `CommandError` if there is no such key."""
    return _with(file, which, lambda record: msgspec.structs.replace(record, revoked=now, former=None))


def rotate(
    file: AccessFile, pepper: bytes, which: str, *, now: datetime, until: datetime | None
) -> tuple[AccessFile, NewKey]:
    """`file` with a new secret for a key; the old one stays valid `until` then. Raises `CommandError`."""
    found = find(file, which)
    key = new_key(found.id)
    former = Former(hash=found.hash, until=until) if until is not None and until > now else None
    hashed = digest(pepper, key.text).hex()
    changed = _with(file, which, lambda record: msgspec.structs.replace(record, hash=hashed, former=former))
    return changed, key


def find(file: AccessFile, which: str) -> KeyRecord:
    """The active key whose id or name is `which`. Raises `CommandError`."""
    found = [record for record in file.keys if which in (record.id, record.name)]
    living = [record for record in found if record.revoked is None]
    if not living:
        raise CommandError(f"the key '{which}' is revoked." if found else f"there is no key '{which}'.")
    if len(living) > 1:
        ids = ", ".join(record.id for record in living)
        raise CommandError(f"several keys are named '{which}': use one of the ids {ids}.")
    return living[0]


def with_price(file: AccessFile, price: Price) -> AccessFile:
    """`file` with `price` for its models. Globs that match more models come after those that match fewer."""
    others = [other for other in file.prices if other.models != price.models]
    prices = sorted((*others, price), key=lambda one: (any(c in one.models for c in "*?["), -len(one.models)))
    return msgspec.structs.replace(file, prices=tuple(prices))


def _with(file: AccessFile, which: str, change: Callable[[KeyRecord], KeyRecord]) -> AccessFile:
    chosen = find(file, which)
    keys = tuple(change(record) if record.id == chosen.id else record for record in file.keys)
    return msgspec.structs.replace(file, keys=keys)
