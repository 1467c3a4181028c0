"""What a key looks like, and that nothing but its own text opens what was made for it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slipstream_core.errors import NotAuthenticated
from slipstream_gateway.access.key_text import PREFIX, checksum, digest, id_of, new_key, pepper_id
from slipstream_gateway.access.keyring import Keyring
from slipstream_gateway.access.records import AccessFile, KeyRecord

PEPPER = b"p" * 32
NOW_S = 1_800_000_000.0
KEY = new_key("abcdefghij")


def ring(*, hash_of: str = KEY.text, **record: object) -> Keyring:
    record = {"expires": None, "revoked": None, **record}
    hashed = digest(PEPPER, hash_of).hex()
    key = KeyRecord(id=KEY.id, hash=hashed, created=datetime(2026, 1, 1, tzinfo=UTC), **record)
    return Keyring(AccessFile(pepper=pepper_id(PEPPER), keys=(key,)), PEPPER)


def test_key_is_told_by_its_prefix_and_checksum_and_its_repr_keeps_the_secret() -> None:
    key = new_key()
    assert key.text.startswith(f"{PREFIX}{key.id}-")
    assert id_of(key.text) == key.id
    assert checksum(key.text[:-6]) == key.text[-6:]
    assert key.text[-20:] not in repr(key)
    assert len({new_key().text for _ in range(100)}) == 100


def test_key_opens_until_it_expires_and_not_after() -> None:
    expiring = ring(expires=datetime.fromtimestamp(NOW_S, UTC))
    assert expiring.authenticate(KEY.text, NOW_S - 1).key_id == KEY.id
    with pytest.raises(NotAuthenticated):
        expiring.authenticate(KEY.text, NOW_S)


def test_revoked_key_and_key_under_another_pepper_do_not_open() -> None:
    with pytest.raises(NotAuthenticated):
        ring(revoked=datetime(2026, 1, 2, tzinfo=UTC)).authenticate(KEY.text, NOW_S)
    with pytest.raises(NotAuthenticated):
        ring(hash_of=new_key(KEY.id).text).authenticate(KEY.text, NOW_S)


@given(st.integers(0, len(KEY.text) - 1), st.characters())
@example(len(KEY.text) - 1, "\n")
@example(0, "S")
def test_key_with_any_character_changed_does_not_open(place: int, char: str) -> None:
    wrong = KEY.text[:place] + char + KEY.text[place + 1 :]
    known = ring()
    if wrong == KEY.text:
        assert known.authenticate(wrong, NOW_S).key_id == KEY.id
        return
    with pytest.raises(NotAuthenticated, match=r"^Incorrect API key provided\.$"):
        known.authenticate(wrong, NOW_S)


@given(st.text())
@example("")
@example(KEY.text + "\n")
@example(KEY.text + " ")
@example(" " + KEY.text)
@example(KEY.text.upper())
@example(f"{KEY.text}, {KEY.text}")
def test_no_other_text_opens(text: str) -> None:
    with pytest.raises(NotAuthenticated):
        ring().authenticate(text, NOW_S)
