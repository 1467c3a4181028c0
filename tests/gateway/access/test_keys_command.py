"""`slipstream keys` on a file."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.errors import CommandError, NotAuthenticated
from slipstream_gateway.access import KeyFile

from tests.support.command import run_slipstream

NOW_S = 1_800_000_000.0


def opens(keys: Any, text: str, now_s: float = NOW_S) -> bool:
    try:
        KeyFile(keys.path, None).load().authenticate(text, now_s)
    except NotAuthenticated:
        return False
    return True


def test_key_is_shown_once_and_stored_as_a_hash_for_its_owner_alone(keys: Any) -> None:
    text = keys.create("--name", "ci")
    assert opens(keys, text)
    secret = text.rpartition("-")[2]
    for path in keys.path.parent.iterdir():
        assert secret not in path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for shown in (keys.run("list"), keys.run("list", "--json"), keys.run("show", "ci")):
        assert secret not in shown
        assert json.loads(keys.path.read_text())["keys"][0]["hash"] not in shown


def test_rights_of_a_key_are_what_the_options_say(keys: Any) -> None:
    keys.run("price", "--input", "0.1", "--output", "0.4")
    text = keys.create(
        *("--model", "team-a/*", "--model", "acme", "--mode", "plain", "--no-draft-length", "--priority", "low"),
        *("--requests-per-minute", "60", "--tokens-per-minute", "1000", "--concurrent", "2", "--usd-per-day", "1.5"),
        *("--admin", "--expires", "3650d"),
    )
    principal = KeyFile(keys.path, None).load().authenticate(text, NOW_S)
    assert [principal.may_use(name) for name in ("acme", "team-a/x", "team-b/x", "acme2", "ACME")] == [
        *(True, True),
        *(False, False, False),
    ]
    assert principal.is_admin
    assert principal.caller.priority == "low"
    assert (principal.scopes.modes, principal.scopes.draft_length, principal.scopes.learn) == (("plain",), False, True)
    limits = principal.limits
    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent) == (60, 1000, 2)
    assert limits.usd_per_day == 1.5


def test_revoked_key_is_of_no_use_and_stays_in_the_list(keys: Any) -> None:
    text = keys.create("--name", "old")
    keys.run("revoke", "old")
    assert not opens(keys, text)
    assert [(key["name"], key["state"]) for key in keys.records()] == [("old", "revoked")]
    assert "is revoked" in keys.fail("revoke", "old")
    assert opens(keys, keys.create("--name", "old"))  # its name is free again


def test_rotated_key_has_both_secrets_for_the_time_of_grace(keys: Any) -> None:
    old = keys.create("--name", "app")
    new = keys.run("rotate", "app", "--grace", "1h")
    assert opens(keys, new)
    assert opens(keys, old, now_s=0.0)
    assert not opens(keys, old, now_s=4e9)
    newest = keys.run("rotate", "app", "--grace", "0s")
    assert (opens(keys, newest), opens(keys, new, now_s=0.0)) == (True, False)
    assert len(keys.records()) == 1


@pytest.mark.integration
def test_commands_at_once_lose_no_key(keys: Any) -> None:
    keys.create()

    def create(_: int) -> str:
        return run_slipstream("keys", "create", "-f", str(keys.path)).stdout.strip()

    with ThreadPoolExecutor(3) as pool:
        texts = list(pool.map(create, range(3)))
    assert all(opens(keys, text) for text in texts)
    assert len(keys.records()) == 4


def test_budget_without_a_price_and_unknown_keys_are_refused_in_one_line(keys: Any) -> None:
    assert "requires prices" in keys.fail("create", "--usd-per-day", "1")
    assert not keys.path.exists()
    keys.create("--name", "a")
    assert "there is no key 'b'" in keys.fail("revoke", "b")
    assert "a key 'a' already exists" in keys.fail("create", "--name", "a")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not valid JSON"),
        ('{"keys": [], "colour": 1}', "unknown field `colour`"),
        ('{"keys": [{"id": "abcdefghij", "hash": "xyz", "created": "2026-01-01T00:00:00Z"}]}', r"\$.keys\[0\].hash"),
        ('{"version": 2}', "version"),
        ('{"jwt": {"issuer": "i", "audiences": ["a"], "jwks": "http://example.com/", "rules": []}}', "rules"),
        (
            '{"jwt": {"issuer": "i", "audiences": ["a"], "jwks": "http://10.0.0.1/",'
            ' "rules": [{"claim": "scope", "value": "x"}]}}',
            "must be an https URL",
        ),
        (
            '{"jwt": {"issuer": "i", "audiences": ["a"], "jwks": "k.json", "algorithms": ["HS256"],'
            ' "rules": [{"claim": "scope", "value": "x"}]}}',
            "algorithms",
        ),
    ],
)
def test_bad_file_is_refused_by_name_and_field(keys: Any, text: str, problem: str) -> None:
    keys.path.write_text(text)
    with pytest.raises(CommandError, match=problem) as caught:
        KeyFile(keys.path, None).load()
    assert str(keys.path) in str(caught.value)


def test_another_pepper_is_said_and_not_taken_for_wrong_keys(keys: Any) -> None:
    keys.create()
    pepper = Path(f"{keys.path}.pepper")
    pepper.write_text("x" * 40)
    with pytest.raises(CommandError, match="under another pepper"):
        KeyFile(keys.path, None).load()
    os.unlink(pepper)
    with pytest.raises(CommandError, match="pepper: cannot be read"):
        KeyFile(keys.path, None).load()


def test_who_could_read_the_file_still_can_after_a_change(keys: Any) -> None:
    """Else a gateway of another user would go on with what it knows, and with the key that was revoked."""
    keys.create("--name", "old")
    keys.path.chmod(0o640)
    keys.run("revoke", "old")
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o640


def test_no_command_works_under_another_pepper(keys: Any) -> None:
    keys.create("--name", "old")
    before = keys.path.read_bytes()
    Path(f"{keys.path}.pepper").write_text("x" * 40)
    for command in (("create",), ("rotate", "old"), ("revoke", "old")):
        assert "under another pepper" in keys.fail(*command)
    assert keys.path.read_bytes() == before
