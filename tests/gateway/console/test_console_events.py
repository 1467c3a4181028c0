"""The stream of figures: whole, then changes; for many at the price of one; over when the gateway stops."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.settings import AccessSettings
from slipstream_gateway.console.feed import Feed
from slipstream_tools.cli import main

from tests.gateway.key_file import Keys
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.gateway_process import Process
from tests.support.polling import PATIENCE_S

VIEWERS = 50
SECTIONS = {
    "gateway",
    "pairs",
    "traffic",
    "speed_up",
    "map",
    "latency",
    "pools",
    "resilience",
    "keys",
    "rollout",
    "history",
}

Console = Callable[..., Any]
Send = Callable[..., list[httpx.Response]]


def _events(answer: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


def _requests(sections: dict[str, Any]) -> int:
    return sum(sum(row["requests"]) for row in sections["traffic"]["rows"])


def _figures(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(
        f"{url}/admin/events", headers={"accept": "application/json"}, timeout=PATIENCE_S
    ).json()
    return found


def test_the_whole_comes_first_and_then_what_has_changed(console: Console, send: Send) -> None:
    url = console().url
    with httpx.stream("GET", f"{url}/admin/events", timeout=PATIENCE_S) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        events = _events(answer)
        kind, first = next(events)
        assert (kind, set(first)) == ("snapshot", SECTIONS)
        send(url, 4)
        for kind, change in events:
            assert kind == "change"
            assert set(change) < SECTIONS
            if "traffic" in change and _requests(change) == 4:
                break


def test_many_viewers_share_one_producer(console: Console, send: Send) -> None:
    url = console().url
    firsts: list[str] = []
    lasts: list[int] = []

    def view() -> None:
        with httpx.stream("GET", f"{url}/admin/events", timeout=PATIENCE_S) as answer:
            for kind, sections in _events(answer):
                if not sections.get("traffic"):
                    continue
                if not lasts and len(firsts) < VIEWERS:
                    firsts.append(kind)
                if _requests(sections) == 6:
                    lasts.append(6)
                    return

    viewers = [threading.Thread(target=view) for _ in range(VIEWERS)]
    for viewer in viewers:
        viewer.start()
    send(url, 6)
    for viewer in viewers:
        viewer.join(PATIENCE_S)
    assert lasts == [6] * VIEWERS


async def test_a_producer_runs_only_while_somebody_looks() -> None:
    made: list[int] = []

    async def sections() -> dict[str, int]:
        made.append(len(made))
        return {"n": len(made)}

    feed = Feed(sections, every_s=0.001)
    views = [feed.events() for _ in range(20)]
    for view in views:
        await anext(view)  # how soon to come back
        assert b"event: snapshot" in await anext(view)
    assert feed.viewers == 20
    whole, slow = views[0], views[1]
    assert b"event: change" in await anext(whole) or b"event: snapshot" in await anext(whole)
    at_most = len(made)
    assert at_most < 20 * len(views)
    while len(made) < at_most + 5:
        await anext(whole)
    assert b"event: snapshot" in await anext(slow)  # it missed some: the newest whole, nothing was kept for it
    for view in views:
        await view.aclose()
    assert feed.viewers == 0
    stopped = len(made)
    await asyncio.sleep(0.01)  # ten of the producer's turns, if it still ran
    assert len(made) == stopped


def test_nothing_of_a_prompt_or_an_answer_is_in_it(console: Console) -> None:
    url = console().url
    body = chat("Summarize the merger with Initech tokens=3", user="customer-4711")
    httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S).raise_for_status()
    text = json.dumps(_figures(url))
    assert "summarization" in text
    assert not any(word in text for word in ("Initech", "merger", "4711", "word"))


def test_a_viewer_does_not_hold_up_the_end(
    tmp_path: Path, openai_server: Callable[..., Any], free_ports: Callable[[int], list[int]]
) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(manifest_text([openai_server().url]))
    process = Process(manifest, free_ports(1)[0], "--drain", "600", workers=2)
    process.wait_live()
    with httpx.stream("GET", f"{process.admin_urls[1]}/admin/events", timeout=PATIENCE_S) as stream:
        events = _events(stream)
        next(events)
        process.child.send_signal(signal.SIGTERM)
        for _ in events:
            pass
    _, log = process.child.communicate(timeout=PATIENCE_S)
    assert process.child.returncode == 0, log


def _revoked(path: Path, name: str) -> None:
    assert main(["keys", "revoke", "-f", str(path), name]) == 0


def _no_admin(path: Path, name: str) -> None:
    file = json.loads(path.read_text())
    for key in file["keys"]:
        if key["name"] == name:
            key["scopes"]["admin"] = False
    _replaced(path, file)


def _expired(path: Path, name: str) -> None:
    file = json.loads(path.read_text())
    for key in file["keys"]:
        if key["name"] == name:
            key["expires"] = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    _replaced(path, file)


def _replaced(path: Path, file: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(file))
    new.replace(path)


@pytest.mark.parametrize(
    ("take", "status"), [(_revoked, 401), (_expired, 401), (_no_admin, 403)], ids=["revoked", "expired", "no admin"]
)
def test_a_stream_ends_with_the_right_to_see_it(
    console: Console, keys: Keys, take: Callable[[Path, str], None], status: int
) -> None:
    """Nothing else changes meanwhile, so that no event is what ends it; another admin's stream goes on."""
    lost, kept = keys.create("--admin", "--name", "lost"), keys.create("--admin", "--name", "kept")
    url = console(access=AccessSettings(keys=keys.path)).url
    mine, others = ({"authorization": f"Bearer {key}"} for key in (lost, kept))
    with (
        httpx.stream("GET", f"{url}/admin/events", headers=others, timeout=PATIENCE_S) as going_on,
        httpx.stream("GET", f"{url}/admin/events", headers=mine, timeout=PATIENCE_S) as ending,
    ):
        lines, theirs = ending.iter_lines(), _events(going_on)
        assert "event: snapshot" in itertools.islice(lines, 3)
        assert next(theirs)[0] == "snapshot"
        take(keys.path, "lost")
        deadline = time.monotonic() + PATIENCE_S
        for _ in lines:  # a heartbeat at least, which comes every ten seconds
            assert time.monotonic() < deadline
        assert httpx.get(f"{url}/admin/events", headers=mine, timeout=PATIENCE_S).status_code == status
        assert (
            httpx.get(f"{url}/admin/events", timeout=PATIENCE_S).status_code == 401
        )  # which is news for the other one
        assert any("resilience" in change for _, change in theirs)
