"""Two API keys at one gateway: one key's answers are no reason to decode another's plainly."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from slipstream_core.settings import AccessSettings

from tests.gateway.pair_manifest import manifest_text
from tests.support.polling import PATIENCE_S

TEMPLATES = (
    "Summarize the following support call for the CRM: reason, agent actions, outcome, next step. " * 4,
    "Summarize this meeting for those who were not there, with all decisions and open questions. " * 4,
)
PREDICTABLE = "tokens=200 accepted=160 rejected=10"
UNPREDICTABLE = "tokens=200 accepted=2 rejected=160"
ATTACKS = 24


@pytest.fixture
def tenants(keys: Any) -> list[str]:
    """Two keys, which may see the numbers of a decision."""
    return [keys.create("--admin") for _ in range(2)]


@pytest.fixture
def running(gateway: Callable[..., Any], openai_server: Callable[..., Any], keys: Any, tenants: list[str]) -> Any:
    """A gateway for `tenants` before servers on which speculation pays for predictable answers and for no others: a
    step takes more than two plain ones, whatever it yields."""
    plain, speculative = openai_server(), openai_server()
    plain.slow_s, speculative.slow_s = 0.4, 0.2
    policy = ", decision: expected, holdBackShare: 0, explorationShare: 0, minConfidence: 0, maxRareTokenShare: 1"
    text = manifest_text([plain.url], [speculative.url], policy=policy)
    return gateway(text, access=AccessSettings(keys=keys.path))


def post(running: Any, key: str, path: str, prompt: str, **headers: str) -> httpx.Response:
    body = {"model": "acme", "messages": [{"role": "user", "content": prompt}]}
    headers = {"authorization": f"Bearer {key}"} | headers
    response = httpx.post(f"{running.url}{path}", json=body, headers=headers, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    return response


def attack(running: Any, key: str) -> None:
    """Requests of random words whose answers no draft can guess, some at a time."""
    rng = random.Random(1)
    words = [" ".join("".join(rng.choices("abcdefghijklm", k=7)) for _ in range(20)) for _ in range(ATTACKS)]

    def send(made_up: str) -> None:
        prompt = f"{TEMPLATES[0]} {made_up} {UNPREDICTABLE}"
        post(running, key, "/v1/chat/completions", prompt, **{"x-slipstream-mode": "speculative"})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, words))


def test_random_words_of_one_key_do_not_turn_speculation_off_for_another(running: Any, tenants: list[str]) -> None:
    tenant, attacker = tenants
    known, unknown = (f"{template} {PREDICTABLE}" for template in TEMPLATES)
    for mode in ("speculative", "plain") * 4:
        post(running, tenant, "/v1/chat/completions", known, **{"x-slipstream-mode": mode})

    def decisions(key: str) -> list[tuple[str, float]]:
        found = (post(running, key, "/v1/route", prompt).json() for prompt in (known, unknown))
        return [(one["arm"], one["numbers"]["acceptance"]) for one in found]

    before = decisions(tenant)
    assert [arm for arm, _ in before] == ["speculative", "speculative"]
    attack(running, attacker)
    after = decisions(tenant)
    assert [arm for arm, _ in after] == ["speculative", "speculative"]
    for (_, acceptance), (_, was) in zip(after, before, strict=True):
        assert acceptance == pytest.approx(was, abs=0.1)
    assert all(acceptance < 0.3 for _, acceptance in decisions(attacker))
