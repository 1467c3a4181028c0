"""LiteLLM's proxy with the callback in front of a real vLLM with the plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import httpx
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.litellm_proxy.conftest import MANIFEST
from tests.gateway.litellm_proxy.test_litellm_decisions import ask
from tests.support.litellm_proxy import LiteLlmProxy, vllm_model
from tests.support.polling import soon
from tests.vllm.plugin.client import MODEL, Server, summaries

# tests/gateway/litellm_proxy has a scripted server.
pytestmark = pytest.mark.slow
RULES = """\
  decision: rules
  adaptiveDraftLength: false
  classes:
    - {name: summarization, mode: speculative, draftTokens: 3}
    - {name: open_chat, mode: plain}
"""
CHATS = summaries(4)
TALK = {"messages": [{"role": "user", "content": "Tell me about your weekend."}], "max_tokens": 24}


@pytest.fixture(scope="module")
def proxy(vllm_server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteLlmProxy]:
    manifest = MANIFEST.format(url=vllm_server.url).replace("acme", MODEL) + RULES
    running = LiteLlmProxy(
        tmp_path_factory.mktemp("litellm"), models=[vllm_model(MODEL, vllm_server.url)], manifest=manifest
    )
    yield running
    running.stop()


async def test_a_real_vllm_gets_the_lengths_and_counts_them_by_class(
    proxy: LiteLlmProxy, vllm_server: VllmServer
) -> None:
    async with aiohttp.ClientSession() as session, proxy.client() as client:
        server = Server(session, vllm_server.url)

        async def has_drafted() -> bool:
            before = (await server.counters())["draft_tokens"]
            await ask(client, greedy(CHATS[0]))
            return (await server.counters())["draft_tokens"] > before

        await soon(has_drafted, "drafts", seen=proxy.log)
        before = await server.counters()
        assert await told(client, TALK, stream=False) == 0
        assert await told(client, TALK, stream=True) == 0
        assert await server.counters() == before

        direct = [await text_of(server, each) for each in CHATS]
        between = await server.counters()
        accepted = sum([await told(client, each, stream=stream) for each in CHATS for stream in (False, True)])
        after = await server.counters()
        assert after["accepted_tokens"] - between["accepted_tokens"] == accepted > 0
        assert [await ask(client, greedy(each, stream=True)) for each in CHATS] == direct
        assert any(name.startswith("summarization/") and length == "3" for name, length in await server.labels())


async def test_text_completions_speculate_too(proxy: LiteLlmProxy, vllm_server: VllmServer) -> None:
    prompt = CHATS[0]["messages"][-1]["content"]
    fields = {"model": MODEL, "prompt": prompt, "max_tokens": 32, "temperature": 0}
    async with aiohttp.ClientSession() as session, proxy.client() as client:
        server = Server(session, vllm_server.url)
        direct = await server.call("POST", "/v1/completions", {**fields, "vllm_xargs": {"slipstream_draft_length": 0}})
        texts = [await ask(client, {**fields, "stream": stream}) for stream in (False, True)]
    assert texts == [direct["choices"][0]["text"]] * 2


def greedy(fields: dict[str, Any], *, stream: bool = False) -> dict[str, Any]:
    return {"model": MODEL, "temperature": 0, **fields, "stream": stream}


async def told(client: httpx.AsyncClient, fields: dict[str, Any], *, stream: bool) -> int:
    """The accepted draft tokens that a client of LiteLLM sees in the usage."""
    asked = {**greedy(fields, stream=stream), **({"stream_options": {"include_usage": True}} if stream else {})}
    response = await client.post("/v1/chat/completions", json=asked)
    assert response.status_code == 200, response.text
    last = response.text.split("\n\n")[-3].removeprefix("data: ") if stream else response.text
    details = httpx.Response(200, text=last).json()["usage"]["completion_tokens_details"]
    return int(details["accepted_prediction_tokens"])


async def text_of(server: Server, fields: dict[str, Any]) -> str:
    """vLLM's own plain answer."""
    body = {**greedy(fields), "vllm_xargs": {"slipstream_draft_length": 0}}
    answer = await server.call("POST", "/v1/chat/completions", body)
    text: str = answer["choices"][0]["message"]["content"]
    return text
