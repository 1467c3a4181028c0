"""The callback in a real LiteLLM proxy decides as `slipstream route` does, in every kind of request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from slipstream_tools.cli import main

from tests.gateway.litellm_proxy.conftest import MANIFEST, StartProxy
from tests.gateway.litellm_proxy.scripted_vllm import TOKENS, ScriptedVllm
from tests.support.litellm_proxy import LiteLlmProxy, vllm_model
from tests.support.polling import soon
from tests.support.streams import whole_events_of

RULES = """\
  decision: rules
  classes:
    - {name: summarization, mode: speculative, draftTokens: 5}
    - {name: code, draftTokens: 3}
    - {name: rewriting, mode: speculative, draftTokens: 2}
    - {name: translation, mode: plain}
"""
PROMPTS = (
    "Summarize the following report in two hundred words: sales rose in the north, fell in the south, and stood still.",
    "Write a Python function that parses a CSV file, validates each row, and returns a list of dataclasses.",
    "Rewrite this text so that it sounds friendlier: your order is late because you gave us the wrong address.",
    "Translate the following sentence into German: the meeting was moved to Thursday at nine.",
    "What is the capital of France?",
    "Write a long story about a lighthouse keeper who finds a letter in a bottle.",
    "Extract all names and dates from this text: Ada met Charles on 5 June 1833 in London.",
    "Is this review positive or negative? The food was cold and nobody apologised.",
    "Prove that the square root of two is irrational, step by step.",
    "Tell me about your weekend, and ask me about mine.",
)
CODE = PROMPTS[1]
REQUESTS = 500
AT_ONCE = 8


class Stage(NamedTuple):
    """A proxy with the server behind it."""

    proxy: LiteLlmProxy
    server: ScriptedVllm


@pytest.fixture(scope="module")
def stage(start_proxy: StartProxy, start_vllm: Callable[..., ScriptedVllm]) -> Stage:
    server = start_vllm()
    models = [vllm_model("acme", server.url), vllm_model("other", server.url)]
    proxy = start_proxy(models=models, manifest=MANIFEST.format(url=server.url) + RULES)
    asyncio.run(decides(proxy, server))
    return Stage(proxy, server)


async def decides(proxy: LiteLlmProxy, server: ScriptedVllm) -> None:
    """Waits until the callback knows that the server has the plugin. The first request lets it begin."""

    async def is_decided() -> bool:
        await ask(client, body(PROMPTS[0]))
        return bool(server.bodies[-1]["vllm_xargs"]["slipstream_draft_length"])

    async with proxy.client() as client:
        await soon(is_decided, "a request that drafts", seen=proxy.log)
    server.bodies.clear()


def body(prompt: str, number: int = 0, *, chat: bool = True, stream: bool = False, **more: Any) -> dict[str, Any]:
    """A request; `number` is its seed, by which the server's record is found."""
    content = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    return {"model": "acme", **content, "stream": stream, "seed": number, "max_tokens": 400, **more}


async def ask(client: httpx.AsyncClient, fields: dict[str, Any], headers: dict[str, str] | None = None) -> str:
    """The text of the answer."""
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    response = await client.post(path, json=fields, headers=headers)
    assert response.status_code == 200, response.text
    if fields.get("stream"):
        return "".join(_text(event) for event in whole_events_of(response.text))
    return _text(response.json())


def _text(answer: dict[str, Any]) -> str:
    [choice] = answer["choices"] or [{}]
    said = choice.get("message") or choice.get("delta") or choice
    return said.get("content") or said.get("text") or ""


def routed(manifest: Path, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Draft length and class by `slipstream route`."""
    file = manifest.with_name("body.json")
    file.write_text(json.dumps(fields), encoding="utf-8")
    capsys.readouterr()
    assert main(["route", "--json", "-f", str(manifest), str(file)]) == 0
    decision = json.loads(capsys.readouterr().out)
    return decision["draft_length"], decision["class"]


@pytest.mark.slow  # many requests
async def test_500_requests_have_the_draft_lengths_that_were_decided(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.server.bodies.clear()
    kinds = [(chat, stream) for chat in (True, False) for stream in (True, False)]
    bodies = [body(PROMPTS[i % len(PROMPTS)], i, chat=kinds[i % 4][0], stream=kinds[i % 4][1]) for i in range(REQUESTS)]
    gate = asyncio.Semaphore(AT_ONCE)
    async with stage.proxy.client() as client:

        async def one(fields: dict[str, Any]) -> str:
            async with gate:
                return await ask(client, fields)

        texts = await asyncio.gather(*map(one, bodies))

    assert set(texts) == {"word " * TOKENS}
    got = {
        each["seed"]: (each["vllm_xargs"]["slipstream_draft_length"], each["vllm_xargs"]["slipstream_class"])
        for each in stage.server.bodies
    }
    assert len(stage.server.bodies) == len(got) == REQUESTS
    expected = {fields["seed"]: routed(stage.proxy.manifest, fields, capsys) for fields in bodies}
    assert got == expected
    assert {length for length, _ in expected.values()} >= {0, 2, 3, 5, 6}


async def test_the_client_may_choose_where_the_policy_permits_it(stage: Stage) -> None:
    async with stage.proxy.client() as client:
        await ask(client, body(PROMPTS[3]), {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "4"})
        assert stage.server.bodies[-1]["vllm_xargs"]["slipstream_draft_length"] == 4
        await ask(client, body(PROMPTS[0]), {"x-slipstream-mode": "plain"})
        assert stage.server.bodies[-1]["vllm_xargs"]["slipstream_draft_length"] == 0


async def test_other_models_and_other_arguments_for_vllm_are_left_alone(stage: Stage) -> None:
    async with stage.proxy.client() as client:
        await ask(client, body(PROMPTS[0], model="other"))
        assert "vllm_xargs" not in stage.server.bodies[-1]
        await ask(client, body(PROMPTS[0], vllm_xargs={"mine": 1}))
        assert stage.server.bodies[-1]["vllm_xargs"] == {
            "mine": 1,
            "slipstream_draft_length": 5,
            "slipstream_class": "summarization/medium",
        }


async def test_a_request_that_the_gateway_would_refuse_is_sent_plainly(stage: Stage) -> None:
    async with stage.proxy.client() as client:
        await ask(client, body(PROMPTS[0], vllm_xargs={"slipstream_draft_length": 3}))
    assert stage.server.bodies[-1]["vllm_xargs"] == {"slipstream_draft_length": 0}


async def test_a_kill_switch_in_the_manifest_acts_without_a_restart(stage: Stage) -> None:
    before, stops = stage.proxy.manifest.read_text(encoding="utf-8"), stage.server.stops

    async def is_length(length: int) -> bool:
        async with stage.proxy.client() as client:
            await ask(client, body(PROMPTS[0]))
        return bool(stage.server.bodies[-1]["vllm_xargs"]["slipstream_draft_length"] == length)

    stage.proxy.manifest.write_text(before.replace("maxDraftTokens: 6", "maxDraftTokens: 6\n  killSwitch: true"))
    await soon(lambda: is_length(0), "plain decoding")
    await soon(lambda: stage.server.stops > stops, "the command to stop drafting, for running streams")
    stage.proxy.manifest.write_text(before)
    await soon(lambda: is_length(5), "drafts again")
