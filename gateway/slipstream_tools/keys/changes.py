"""What `slipstream keys` changes in a file of keys. Pure: a file in, a file out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec
from slipstream_core.errors import CommandError
from slipstream_gateway.access.key_text import NewKey, digest, new_key, pepper_id
from slipstream_gateway.access.records import AccessFile, Former, KeyRecord, Price


def create(file: AccessFile, pepper: bytes, key: NewKey, record: KeyRecord) -> AccessFile:
    """`file` with a further key. Raises `CommandError` where its name is another living key's."""
    if record.name and any(other.name == record.name and other.revoked is None for other in file.keys):
        raise CommandError(f"there is a key '{record.name}' already: revoke it, or rotate it.")
    hashed = msgspec.structs.replace(record, id=key.id, hash=digest(pepper, key.text).hex())
    return msgspec.structs.replace(file, pepper=pepper_id(pepper), keys=(*file.keys, hashed))


def revoke(file: AccessFile, which: str, now: datetime) -> AccessFile:
    """`file` in which a key is of no use any more. Raises `CommandError` where there is none."""
    return _with(file, which, lambda record: msgspec.structs.replace(record, revoked=now, former=None))


def rotate(
    file: AccessFile, pepper: bytes, which: str, *, now: datetime, until: datetime | None
) -> tuple[AccessFile, NewKey]:
    """`file` in which a key has a new secret; the old one is good `until` then. Raises `CommandError`."""
    found = find(file, which)
    key = new_key(found.id)
    former = Former(hash=found.hash, until=until) if until is not None and until > now else None
    hashed = digest(pepper, key.text).hex()
    changed = _with(file, which, lambda record: msgspec.structs.replace(record, hash=hashed, former=former))
    return changed, key


def find(file: AccessFile, which: str) -> KeyRecord:
    """The living key whose id or name is `which`. Raises `CommandError`."""
    found = [record for record in file.keys if which in (record.id, record.name)]
    living = [record for record in found if record.revoked is None]
    if not living:
        raise CommandError(f"the key '{which}' was revoked." if found else f"there is no key '{which}'.")
    if len(living) > 1:
        ids = ", ".join(record.id for record in living)
        raise CommandError(f"several keys are called '{which}': say which by id: {ids}.")
    return living[0]


def with_price(file: AccessFile, price: Price) -> AccessFile:
    """`file` in which `price` holds for its models. Globs for more models stand behind those for fewer."""
    others = [other for other in file.prices if other.models != price.models]
    prices = sorted((*others, price), key=lambda one: (any(c in one.models for c in "*?["), -len(one.models)))
    return msgspec.structs.replace(file, prices=tuple(prices))


def _with(file: AccessFile, which: str, change: Callable[[KeyRecord], KeyRecord]) -> AccessFile:
    chosen = find(file, which)
    keys = tuple(change(record) if record.id == chosen.id else record for record in file.keys)
    return msgspec.structs.replace(file, keys=keys)
