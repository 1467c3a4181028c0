"""A kill whose file cannot be written, in a gateway of several workers, and the warning at its start."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.gateway_process import Process
from tests.support.polling import PATIENCE_S, eventually


def test_a_kill_reaches_all_workers_if_it_is_stored_and_one_if_not(
    start: Callable[..., Process], openai_server: Callable[..., Any], tmp_path: Path
) -> None:
    process = start(manifest_text([openai_server().url], [openai_server().url]), "--drain", "1", workers=2)
    one, other = process.admin_urls
    assert _turn(one, on=True)["note"] == ""
    eventually(lambda: _killed_by(other) == "Ada")
    assert _reasons(process) == {"kill_switch"}
    assert _turn(other, on=False)["note"] == ""
    eventually(lambda: _killed_by(one) is None)
    (tmp_path / "pair.yaml.kills.json.lock").unlink()
    (tmp_path / "pair.yaml.kills.json.lock").mkdir()  # prevents storing, for root as well
    assert _turn(one, on=True)["note"].startswith("this gateway alone; not stored: ends with a restart")
    assert (_killed_by(one), _killed_by(other)) == ("Ada", None)


def test_a_folder_that_cannot_be_written_is_reported_at_the_start(
    start: Callable[..., Process], openai_server: Callable[..., Any]
) -> None:
    """Not even root creates files in /proc."""
    process = start(manifest_text([openai_server().url]), "--drain", "1", "--state-folder", "/proc")
    process.child.send_signal(signal.SIGTERM)
    _, log = process.child.communicate(timeout=PATIENCE_S)
    [line] = [line for line in log.splitlines() if "cannot be stored" in line]
    assert line.startswith("slipstream: warning: /proc/pair.yaml.kills.json: the kill switch cannot be stored")
    assert "--state-folder" in line


def _reasons(process: Process) -> set[str]:
    """Of requests over connections of their own, so that both workers answer."""
    url, body = f"{process.url}/v1/chat/completions", chat("tokens=1")
    return {httpx.post(url, json=body, timeout=PATIENCE_S).headers["x-slipstream-reason"] for _ in range(20)}


def _turn(admin: str, *, on: bool) -> dict[str, Any]:
    """Turns the switch at one worker."""
    answer = httpx.request(
        "POST" if on else "DELETE", f"{admin}/admin/kills/pair", json={"by": "Ada"},
        headers={"x-slipstream-console": "1"}, timeout=PATIENCE_S,
    )  # fmt: skip
    assert answer.status_code == 200
    return dict(answer.json())


def _killed_by(admin: str) -> str | None:
    """The person in the console of a worker; None if there is no kill."""
    shown = httpx.get(f"{admin}/admin/events", headers={"accept": "application/json"}, timeout=PATIENCE_S).json()
    kill = shown["pairs"][0]["kill"]
    return None if kill is None else str(kill["by"])
