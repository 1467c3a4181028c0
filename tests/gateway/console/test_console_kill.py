"""The kill switch beside a manifest: who may turn it, what it says, and that it stays."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.errors import ManifestError
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.manifest.kill_file import KillFile
from slipstream_core.settings import AccessSettings
from slipstream_tools.cli import main

from tests.gateway.key_file import Keys

ASKED = {"x-slipstream-console": "1"}
Console = Callable[..., Any]
Send = Callable[..., list[httpx.Response]]


def _turn(url: str, *, on: bool = True, pair: str = "pair", **options: Any) -> httpx.Response:
    options = {"json": {"by": "Ada"}, "headers": ASKED, **options}
    return httpx.request("POST" if on else "DELETE", f"{url}/admin/kills/{pair}", timeout=15.0, **options)


def _reasons(answers: list[httpx.Response]) -> set[str]:
    return {answer.headers["x-slipstream-reason"] for answer in answers}


def _generation(url: str) -> str:
    return str(httpx.get(f"{url}/health/ready", timeout=15.0).json()["generation"])


def test_it_survives_a_restart_and_never_touches_the_manifest(console: Console, send: Send, tmp_path: Path) -> None:
    running = console()
    before = running.manifest.read_bytes()
    answer = _turn(running.url, json={"by": "Ada", "reason": "bad drafts"})
    assert answer.status_code == 200
    assert (answer.json()["by"], answer.json()["workers"]) == ("Ada", 1)
    running.stop()
    again = console()
    assert _reasons(send(again.url, 4)) == {"kill_switch"}
    assert _turn(again.url, on=False).json()["landed_s"] > 0.0
    assert "speculation_pays" in _reasons(send(again.url, 12))
    assert len(again.manifest.read_text()) == len(before.decode())
    kept = json.loads((tmp_path / "pair.yaml.kills.json").read_text())
    assert kept["pairs"] == {}
    assert [(event["on"], event["by"]) for event in kept["events"]] == [(False, "Ada"), (True, "Ada")]


def test_it_holds_while_the_manifest_changes(console: Console, send: Send) -> None:
    running = console()
    _turn(running.url)
    first = _generation(running.url)
    running.manifest.write_text(running.manifest.read_text().replace("maxDraftTokens: 5", "maxDraftTokens: 3"))
    until_s = time.monotonic() + 15.0
    while _generation(running.url) == first:
        assert time.monotonic() < until_s
        assert _reasons(send(running.url, 1)) == {"kill_switch"}
    assert _reasons(send(running.url, 2)) == {"kill_switch"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"headers": {}}, "x-slipstream-console"),
        ({"headers": {**ASKED, "content-type": "text/plain"}, "json": None, "content": b"{}"}, "requires a JSON body"),
        ({"headers": {**ASKED, "origin": "https://evil.example"}}, "other sites"),
        ({"headers": {**ASKED, "origin": "null"}}, "other sites"),
        ({"headers": {**ASKED, "sec-fetch-site": "cross-site"}}, "other sites"),
        ({"headers": {**ASKED, "host": "rebound.example", "origin": "http://rebound.example"}}, "rebound.example"),
        ({"json": {}}, "by"),
        ({"json": {"by": ""}}, "by"),
        ({"json": {"by": " "}}, "by"),
        ({"json": {"by": "A\u0000da"}}, "plain text"),
        ({"json": {"by": "x" * 101}}, "by"),
        ({"json": {"by": 7}}, "by"),
        ({"json": {"by": "Ada", "more": 1}}, "more"),
        ({"json": ["Ada"]}, "JSON"),
        ({"pair": "nobody"}, "nobody"),
        ({"pair": "../pair"}, ""),
    ],
)
def test_who_must_not_turn_it_is_told_why(untouched: Any, send: Send, options: dict[str, Any], said: str) -> None:
    answer = _turn(untouched.url, **options)
    assert answer.status_code in (400, 403, 404)
    assert said in answer.json()["error"]["message"]
    assert "kill_switch" not in _reasons(send(untouched.url, 1))


def test_a_file_that_is_broken_changes_nothing_while_a_gateway_runs(
    console: Console, send: Send, tmp_path: Path
) -> None:
    running, path = console(), tmp_path / "pair.yaml.kills.json"
    _turn(running.url)
    kept = path.read_bytes()
    path.write_text('{"pairs": {"pair": 7}}')
    assert _reasons(send(running.url, 3)) == {"kill_switch"}
    with pytest.raises(ManifestError, match=r"pair\.yaml\.kills\.json: is not a kill-switch file: .*\$\.pairs"):
        KillFile(path).refresh()
    path.write_bytes(kept)


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda path: path.write_text('{"pairs": {"pair": 7}}'), "is not a kill-switch file: Expected"),
        (lambda path: path.write_text(""), "is not a kill-switch file: Input data was truncated"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    ],
    ids=["another form", "empty", "a folder"],
)
def test_a_file_that_is_broken_stops_a_start_with_one_line_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], object], wrong: str
) -> None:
    """Which pairs were stopped must not be guessed: without the file they would all speculate again."""
    manifest, path = tmp_path / "pair.yaml", tmp_path / "pair.yaml.kills.json"
    manifest.write_bytes(EMBEDDED_MANIFEST.read_bytes())
    spoil(path)
    assert main(["gateway", "-f", str(manifest), "--port", "0"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{path}: {wrong}" in line
    assert "Repair or remove it" in line


def test_keys_decide_who_may_and_who_it_was(console: Console, keys: Keys, send: Send) -> None:
    """The page comes without a key, for a browser has none yet; nothing else does."""
    admin, other = keys.create("--admin"), keys.create()
    url = console(access=AccessSettings(keys=keys.path)).url
    assert httpx.get(f"{url}/console", timeout=15.0).status_code == 200
    assert httpx.get(f"{url}/console/main.js", timeout=15.0).status_code == 200
    for key, status in (("", 401), ("sk-wrong", 401), (other, 403), (admin, 200)):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        asked = httpx.get(f"{url}/admin/events", headers={"accept": "application/json", **headers}, timeout=15.0)
        assert asked.status_code == status
        assert _turn(url, headers={**ASKED, **headers}).status_code == status
    assert _turn(url, on=False, headers={**ASKED, "authorization": f"Bearer {admin}"}).json()["by"].startswith("Ada (")
