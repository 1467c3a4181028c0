"""Requests of one key that break their connections, and the speculation of other keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from slipstream_core.settings import AccessSettings, ConformanceSettings

from tests.gateway.key_file import Keys
from tests.gateway.lossless.scripted_engine import FACTS, ScriptedEngine
from tests.gateway.lossless.vllm_pair import vllm_pair
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, eventually

ROUNDS = 20


def reason(url: str, key: str, text: str) -> str:
    headers = {"authorization": f"Bearer {key}", "x-slipstream-mode": "speculative"}
    answer = httpx.post(f"{url}/v1/chat/completions", json=chat(text), headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == (503 if "break" in text else 200)
    return str(answer.headers.get("x-slipstream-reason"))


def reasons_beside_breaks(url: str, hostile: str, others: list[str]) -> set[str]:
    """The reasons of the other keys' requests, each after a broken connection of the hostile key. The breaking texts
    differ, because a request that breaks servers is refused soon."""
    eventually(lambda: reason(url, others[0], "tokens=2") == "client_asked", "the check of the server")
    found = set()
    for number in range(ROUNDS):
        for again in range(2):
            reason(url, hostile, f"break die=0 {number} {again}")
        found |= {reason(url, key, "tokens=2") for key in others}
    return found


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    started = ScriptedEngine()
    started.release.set()
    yield started
    started.stop()


@pytest.mark.parametrize("honest", [1, 2, 5])
def test_broken_connections_of_one_key_leave_an_engines_verdict_to_other_keys(
    gateway: Callable[..., Any], engine: ScriptedEngine, keys: Keys, honest: int
) -> None:
    hostile, *others = (keys.create() for _ in range(1 + honest))
    conformance = ConformanceSettings(enabled=True, probe_s=0.2)
    access = AccessSettings(keys=keys.path)
    running = gateway(vllm_pair("acme", engine.url), conformance=conformance, access=access)
    assert reasons_beside_breaks(running.url, hostile, others) == {"client_asked"}


def test_an_engine_that_restarted_at_a_break_is_checked_before_it_speculates(
    gateway: Callable[..., Any], engine: ScriptedEngine, keys: Keys
) -> None:
    engine.facts = {**FACTS, "instance": "first"}
    key = keys.create()
    conformance = ConformanceSettings(enabled=True, probe_s=1000.0)
    running = gateway(vllm_pair("acme", engine.url), conformance=conformance, access=AccessSettings(keys=keys.path))
    eventually(lambda: reason(running.url, key, "tokens=2") == "client_asked", "the check of the server")
    engine.slow_s = PATIENCE_S  # the next check takes long
    engine.facts = {**FACTS, "instance": "second"}
    reason(running.url, key, "break")
    eventually(lambda: reason(running.url, key, "tokens=2") == "engine_unverified", "the loss of the verdict")


def test_broken_connections_of_one_key_eject_no_server_for_another(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], keys: Keys
) -> None:
    hostile, other = keys.create(), keys.create()
    text = manifest_text([openai_server().url], [openai_server().url])
    running = gateway(text, access=AccessSettings(keys=keys.path))
    assert reasons_beside_breaks(running.url, hostile, [other]) == {"client_asked"}
