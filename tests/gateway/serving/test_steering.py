"""Clients that try to move the measured speed-up of everybody: by their choice of ids, and by their choice of answers.

The real gateway, with servers of which the speculative one is faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.settings import AccessSettings

from tests.gateway.key_file import Keys
from tests.gateway.pair_manifest import chat, manifest_text

# Nothing speaks against speculation: the arm comes from the draws alone.
POLICY = (
    ", decision: rules, minOutputTokens: 1, maxRareTokenShare: 1, minConfidence: 0, holdBackShare: 0.5"
    ", explorationShare: 0, parityShare: 0"
)
SUMMARY = "Summarize the following support call for the CRM: reason, agent actions, outcome, next step. " * 4
CLIENTS = 6
ROUNDS = 10
HONEST, HOSTILE = 40, 120
SHORT, USUAL, LONG = "tokens=2 gap", "tokens=8 gap", "tokens=24 gap"


@pytest.fixture
def serve(gateway: Callable[..., Any], openai_server: Callable[..., Any]) -> Callable[..., Any]:
    def start(**options: Any) -> Any:
        plain, speculative = openai_server(), openai_server()
        plain.pace_s, speculative.pace_s = 0.05, 0.01
        return gateway(manifest_text([plain.url], [speculative.url], policy=POLICY), **options)

    return start


def body(script: str) -> dict[str, Any]:
    return chat(f"{SUMMARY} {script}", stream=True)


def send(url: str, script: str, **headers: str) -> str:
    """The arm of the answer."""
    answer = httpx.post(f"{url}/v1/chat/completions", json=body(script), headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-slipstream-arm"]


def all_at_once(send_one: Callable[[Any], None], given: Sequence[Any]) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(send_one, given))


def speed_up(url: str, **headers: str) -> tuple[float, float, float]:
    """The figure of the only class, with its interval."""
    [pair] = httpx.get(f"{url}/v1/evidence", headers=headers).json()["data"]
    [found] = pair["classes"]
    return tuple(found["e2e_s"][name] for name in ("speed_up", "speed_up_low", "speed_up_high"))  # type: ignore[return-value]


def test_an_id_that_a_client_chooses_tells_and_decides_no_arm(serve: Callable[..., Any]) -> None:
    """Neither its explanation nor the arm of its last answer tells the arm of its next one."""
    url = serve().url
    names = [f"mine-{number}" for number in range(40)]
    reasons = {
        httpx.post(f"{url}/v1/route", json=body(USUAL), headers={"x-request-id": name}).json()["reason"]
        for name in names
    }
    assert reasons == {"speculation_pays"}, "an explanation tells a draw"

    def arms(name: str) -> list[str]:
        return [send(url, SHORT, **{"x-request-id": name}) for _ in range(ROUNDS)]

    with ThreadPoolExecutor(CLIENTS) as clients:
        pairs = [pair for found in clients.map(arms, names) for pair in itertools.pairwise(found)]
    assert {arm for pair in pairs for arm in pair} == {"speculative", "control"}
    equal = sum(one == other for one, other in pairs) / len(pairs)
    assert abs(equal - 0.5) < 4.5 * 0.5 / len(pairs) ** 0.5


@pytest.mark.parametrize("others", [1, 2, 5])
def test_a_key_that_keeps_the_answers_it_likes_moves_no_other_keys_evidence(
    serve: Callable[..., Any], tmp_path: Path, others: int
) -> None:
    """It ends short answers of the speculative arm, and long ones of the control, before they count."""
    keys = Keys(tmp_path / "keys.json")
    honest = [keys.create("--name", f"honest-{number}") for number in range(others)]
    hostile, admin = keys.create("--name", "hostile"), keys.create("--name", "admin", "--admin")
    url = serve(access=AccessSettings(keys=keys.path)).url
    allowed = {"authorization": f"Bearer {admin}"}
    all_at_once(lambda key: send(url, USUAL, authorization=f"Bearer {key}"), honest * HONEST)
    before = speed_up(url, **allowed)
    assert before[1] > 1.0

    def keep_or_end(script: str) -> None:
        headers = {"authorization": f"Bearer {hostile}"}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body(script), headers=headers) as answer:
            arm = answer.headers["x-slipstream-arm"]
            if (arm, script) in {("speculative", LONG), ("control", SHORT)}:
                answer.read()

    all_at_once(keep_or_end, [SHORT, LONG] * HOSTILE)
    after = speed_up(url, **allowed)
    assert after[1] <= before[2]
    assert before[1] <= after[2]
    if others > 1:
        assert after[1] > 1.0
