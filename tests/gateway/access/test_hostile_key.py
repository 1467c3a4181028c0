"""One key's requests and another key's arm, on a gateway with two servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from slipstream_core.settings import AccessSettings

from tests.gateway.key_file import Keys
from tests.gateway.pair_manifest import chat, manifest_text

POLICY = ", decision: expected, minConfidence: 0, explorationShare: 0, holdBackShare: 0"
FAST = "tokens=30 gap accepted=24 rejected=6"
QUICK, SLOW = "tokens=60", "tokens=20 gap=0.01 accepted=0 rejected=95"


def arms(url: str, key: str, script: str, count: int, **headers: str) -> list[str]:
    """The arms of a key's requests, one after the other."""
    with httpx.Client(headers={"authorization": f"Bearer {key}"} | headers) as client:
        answers = [client.post(f"{url}/v1/chat/completions", json=chat(script)) for _ in range(count)]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.headers["x-slipstream-arm"] for answer in answers]


@pytest.mark.parametrize("honest", [1, 2])
def test_24_requests_of_one_key_leave_anothers_arm_alone(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], keys: Keys, honest: int
) -> None:
    hostile, victim, *others = (keys.create() for _ in range(2 + honest))
    plain, speculative = openai_server(), openai_server()
    plain.pace_s, speculative.pace_s = 0.004, 0.001
    manifest = manifest_text([plain.url], [speculative.url], policy=POLICY)
    url = gateway(manifest, access=AccessSettings(keys=keys.path)).url
    for key in others:
        arms(url, key, FAST, 4)
    arms(url, hostile, QUICK, 12, **{"x-slipstream-mode": "plain"})
    arms(url, hostile, SLOW, 12, **{"x-slipstream-mode": "speculative"})
    assert arms(url, victim, FAST, 8) == ["speculative"] * 8
