"""Events and bodies of the application: vLLM's form, which the gateway reads, and resumption at every token."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from slipstream_engine.openai.app import create_app
from slipstream_engine.serving.service import EngineService

from tests.engine.requests_and_answers import Make

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "delivery delay"}]},
    COMPLETION: {"prompt": "delivery delay"},
}
TOKENS = 40
# As in the gateway's `token_ids`.
IDS = re.compile(rb',\s*"(?:prompt_)?token_ids"\s*:\s*\[[\d,\s]*\]')
WITHOUT_TEXT = re.compile(rb'"delta"\s*:\s*\{\s*\}\s*,\s*"logprobs"\s*:\s*null\s*,\s*"finish_reason"\s*:\s*null')


@pytest.fixture
def engine(make_engine: Make) -> Iterator[EngineService]:
    service = EngineService(make_engine("close"), method="model")
    service.begin()
    yield service
    service.close()


@pytest.fixture
async def http(engine: EngineService) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(engine, model="small"))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        yield client


async def ask(http: httpx.AsyncClient, path: str, **more: Any) -> bytes:
    body = {**PROMPTS[path], "temperature": 1.5, "seed": 1, "ignore_eos": True, "max_tokens": TOKENS, **more}
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.content


async def parts(http: httpx.AsyncClient, path: str, **more: Any) -> list[tuple[str, list[int]]]:
    """Text and token ids of each event of a stream."""
    found = []
    for event in _events(await ask(http, path, stream=True, return_token_ids=True, **more)):
        [choice] = event["choices"]
        text = choice["delta"].get("content", "") if path == CHAT else choice["text"]
        found.append((text, choice.get("token_ids") or []))
    return found


def _events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]


def _text(found: list[tuple[str, list[int]]]) -> str:
    return "".join(text for text, _ in found)


@pytest.mark.parametrize("length", [0, 5], ids=["plain", "speculative"])
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_an_answer_with_stop_strings_goes_on_after_each_token(
    http: httpx.AsyncClient, path: str, length: int
) -> None:
    """Every token is a byte: cuts are inside characters, and inside of the beginnings of stop strings."""
    free = _text(await parts(http, path))
    beginnings = [free[at : at + 3] + "\u2603" for at in range(0, len(free) - 3, 2)]
    stop = free[-8:-5]
    assert free.index(stop) == len(free) - 8
    asked = {"stop": [*beginnings, stop]}
    whole = await parts(http, path, **asked, vllm_xargs={"slipstream_draft_length": 0})
    assert {len(ids) for _, ids in whole[1:]} == {1}
    assert _text(whole) == free[:-8]
    assert any(ids and not text for text, ids in whole), "no text was held back: the test shows nothing"
    sent, ids = "", []
    for text, new in whole[:-1]:
        sent, ids = sent + text, ids + new
        if not ids:
            continue
        xargs = {"slipstream_resume_token_ids": ids, "slipstream_draft_length": length}
        rest = await parts(http, path, **asked, vllm_xargs=xargs)
        assert sent + _text(rest) == _text(whole)
        assert ids + [token for _, more in rest for token in more] == [token for _, more in whole for token in more]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_events_are_the_same_with_token_ids_and_without(http: httpx.AsyncClient, path: str) -> None:
    """Once the gateway has removed the ids, and the events that they made necessary."""
    with_ids = await ask(http, path, stream=True, return_token_ids=True, stream_options={"include_usage": True})
    removed = []
    for event in with_ids.split(b"\n\n"):
        taken = IDS.sub(b"", event)
        if taken == event or not WITHOUT_TEXT.search(taken):
            removed.append(taken)
    assert path == COMPLETION or len(removed) < with_ids.count(b"\n\n")
    plain = await ask(http, path, stream=True, stream_options={"include_usage": True})
    assert _comparable(b"\n\n".join(removed)) == _comparable(plain)


def _comparable(data: bytes) -> list[dict[str, Any]]:
    """Its events, without names, times and the engine's seconds."""
    events = _events(data)
    for event in events:
        del event["id"], event["created"]
        if "metrics" in event:
            del event["metrics"]["speculative_decoding"]["engine_seconds"]
    return events


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_every_part_of_an_answer_has_the_fingerprint(
    http: httpx.AsyncClient, engine: EngineService, path: str
) -> None:
    streamed = _events(await ask(http, path, stream=True, stream_options={"include_usage": True}))
    whole = json.loads(await ask(http, path))
    assert len(streamed) > 2
    assert {part["system_fingerprint"] for part in (*streamed, whole)} == {engine.facts().fingerprint}


async def test_the_engine_reports_what_it_resumes_and_that_it_does_not_score(http: httpx.AsyncClient) -> None:
    facts = (await http.get("/slipstream")).json()
    assert (facts["resumes"], facts["resumes_stops"], facts["scores"]) == ("seeded", True, False)
