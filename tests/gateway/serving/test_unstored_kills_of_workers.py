"""A kill whose file cannot be written, in a gateway of several workers, and the warning at its start."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.gateway_process import Process, workers_of, workers_that_serve
from tests.support.polling import PATIENCE_S, eventually


def test_a_kill_that_is_not_stored_reaches_all_workers_and_the_replacement_of_one(
    start: Callable[..., Process], openai_server: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "pair.yaml.kills.json.lock").mkdir()  # prevents storing, for root as well
    process = start(manifest_text([openai_server().url], [openai_server().url]), "--workers", "2", "--drain", "1")
    eventually(lambda: workers_that_serve(process) == 2)
    headers = {"x-slipstream-console": "1"}
    answer = httpx.post(f"{process.url}/admin/kills/pair", json={"by": "Ada"}, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 200
    assert (answer.json()["workers"], "ends with a restart" in answer.json()["note"]) == (2, True)
    assert _killed_by(process) == {"Ada"}
    ended = workers_of(process)[0]
    ended.kill()
    eventually(lambda: len(set(workers_of(process)) - {ended}) == 2 and workers_that_serve(process) == 2)
    assert _killed_by(process) == {"Ada"}
    assert _reasons(process) == {"kill_switch"}


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


def _killed_by(process: Process) -> set[str]:
    """The person in the console, over connections of their own, so that both workers answer."""
    url, headers = f"{process.url}/admin/events", {"accept": "application/json"}
    shown = [httpx.get(url, headers=headers, timeout=PATIENCE_S).json() for _ in range(20)]
    return {state["pairs"][0]["kill"]["by"] if state["pairs"][0]["kill"] else "" for state in shown}
