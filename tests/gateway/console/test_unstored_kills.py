"""Kills whose file cannot be written: they act at once, and the answer says that they end with a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.manifest.kill_file import KillFile
from slipstream_core.manifest.kill_switch import KillEvent, Kills, time_of_turn

from tests.support.polling import PATIENCE_S

ASKED = {"x-slipstream-console": "1"}
NOT_STORED = "not stored: ends with a restart"
Console = Callable[..., Any]
Send = Callable[..., list[httpx.Response]]


def _turn(url: str, *, on: bool = True, by: str = "Ada") -> dict[str, Any]:
    method, target = "POST" if on else "DELETE", f"{url}/admin/kills/pair"
    answer = httpx.request(method, target, json={"by": by}, headers=ASKED, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _reasons(answers: list[httpx.Response]) -> set[str]:
    return {answer.headers["x-slipstream-reason"] for answer in answers}


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """Prevents storing, for root as well: a folder stands in place of the lock file."""
    lock = tmp_path / "pair.yaml.kills.json.lock"
    lock.mkdir()
    return lock


def test_a_kill_acts_and_says_that_it_is_not_stored(console: Console, send: Send, blocked: Path) -> None:
    running = console()
    event = _turn(running.url)
    assert event["landed_s"] is not None
    assert NOT_STORED in event["note"]
    assert f"{blocked.parent}/pair.yaml.kills.json: the kill switch cannot be stored: Is a directory" in event["note"]
    assert _reasons(send(running.url, 4)) == {"kill_switch"}
    shown = httpx.get(f"{running.url}/admin/events", headers={"accept": "application/json"}, timeout=PATIENCE_S).json()
    [pair], [entry] = shown["pairs"], shown["history"]
    assert (pair["killed"], pair["kill"]["by"], entry["note"]) == (True, "Ada", event["note"])
    running.stop()
    assert "kill_switch" not in _reasons(send(console().url, 4))


def test_an_unkill_acts_and_says_that_it_is_not_stored(console: Console, send: Send, tmp_path: Path) -> None:
    running = console()
    assert _turn(running.url)["note"] == ""
    (tmp_path / "pair.yaml.kills.json.lock").unlink()
    (tmp_path / "pair.yaml.kills.json.lock").mkdir()
    assert NOT_STORED in _turn(running.url, on=False)["note"]
    assert "kill_switch" not in _reasons(send(running.url, 4))
    assert "missing in the stored history" in _turn(running.url)["note"]  # the stored kill is still on
    running.stop()
    assert _reasons(send(console().url, 4)) == {"kill_switch"}


def test_a_later_turn_stores_what_could_not_be_stored(console: Console, blocked: Path) -> None:
    running = console()
    _turn(running.url)
    blocked.rmdir()
    assert _turn(running.url, on=False)["note"] == ""
    stored = KillFile(blocked.parent / "pair.yaml.kills.json")
    stored.refresh()
    assert (stored.kills.pairs, stored.kills.events[0].on) == ({}, False)


def test_a_damaged_kill_file_prevents_no_kill(console: Console, send: Send, tmp_path: Path) -> None:
    running, path = console(), tmp_path / "pair.yaml.kills.json"
    path.write_text("damaged")
    assert NOT_STORED in _turn(running.url)["note"]
    assert _reasons(send(running.url, 2)) == {"kill_switch"}
    assert path.read_text() == "damaged"


def test_the_check_of_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    KillFile(tmp_path / "pair.yaml.kills.json").check_storage()
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_is_set_back_prevents_no_turn(tmp_path: Path) -> None:
    ahead = KillEvent(at="2999-01-01T00:00:00.000Z", pair="pair", on=False, by="Ada")
    file = KillFile(tmp_path / "kills.json")
    file.change(lambda _: Kills(events=(ahead,)))
    file.refresh()
    file.apply(KillEvent(at=time_of_turn(file.kills, "pair"), pair="pair", on=True, by="Ada"))
    assert file.kills.pairs["pair"].at == "2999-01-01T00:00:00.001Z"


def test_a_late_notice_of_an_earlier_turn_changes_nothing(tmp_path: Path) -> None:
    file = KillFile(tmp_path / "kills.json")
    file.apply(KillEvent(at="2026-01-01T00:00:01.000Z", pair="pair", on=True, by="Ada"))
    file.apply(KillEvent(at="2026-01-01T00:00:00.000Z", pair="pair", on=False, by="Ada"))
    assert set(file.kills.pairs) == {"pair"}
