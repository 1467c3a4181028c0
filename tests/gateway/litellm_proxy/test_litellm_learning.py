"""The callback gets what LiteLLM reports of answers, and none of its errors fails a request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.litellm_proxy.conftest import MANIFEST, StartProxy
from tests.gateway.litellm_proxy.scripted_vllm import TOKENS, ScriptedVllm
from tests.gateway.litellm_proxy.test_litellm_decisions import CODE, ask, body
from tests.support.litellm_proxy import EXAMPLE, LiteLlmProxy, vllm_model
from tests.support.polling import soon

RECORDING = (
    (EXAMPLE / "slipstream_callback.py").read_text(encoding="utf-8")
    + """
import json

finish = callback._requests.finish

def recorded(request_id, usage, times, *, cut):
    facts = [usage.output_tokens, usage.drafted, usage.accepted, usage.steps, usage.exact, usage.counted, cut]
    with Path(__file__).with_name("learnt.jsonl").open("a") as file:
        file.write(json.dumps([*facts, times.tpot_s is not None]) + "\\n")
    finish(request_id, usage, times, cut=cut)

callback._requests.finish = recorded
"""
)
BROKEN = (
    (EXAMPLE / "slipstream_callback.py").read_text(encoding="utf-8")
    + """

def broken(*_):
    raise RuntimeError("broken on purpose")

callback._decide = broken
"""
)


def whole_line(file: Path) -> str | None:
    """None while the proxy has not written its end."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return text if text.endswith("\n") else None


@pytest.fixture(scope="module")
def recording(start_proxy: StartProxy, start_vllm: Callable[..., ScriptedVllm]) -> tuple[LiteLlmProxy, ScriptedVllm]:
    server = start_vllm()
    manifest = MANIFEST.format(url=server.url) + "  decision: rules\n"
    return start_proxy(models=[vllm_model("acme", server.url)], manifest=manifest, callback=RECORDING), server


@pytest.mark.parametrize(
    ("chat", "stream", "more"),
    [
        (True, False, {}),
        (True, True, {}),
        (False, False, {}),
        (False, True, {"stream_options": {"include_usage": True}}),
    ],
)
async def test_litellm_reports_what_an_answer_cost(
    recording: tuple[LiteLlmProxy, ScriptedVllm], chat: bool, stream: bool, more: dict[str, Any]
) -> None:
    proxy, server = recording
    file = proxy.manifest.with_name("learnt.jsonl")
    async with proxy.client() as client:

        async def learnt() -> list[Any] | None:
            file.unlink(missing_ok=True)
            await ask(client, body(CODE, chat=chat, stream=stream, **more))
            line = await soon(lambda: whole_line(file), "an answer that is learnt from", seen=proxy.log)
            drafts = server.bodies[-1]["vllm_xargs"]["slipstream_draft_length"] == 6
            return list(json.loads(line)) if drafts else None

        facts = await soon(learnt, "an answer with drafts")
    steps = 2  # 11 tokens after the first, 7 a step
    assert facts == [TOKENS, 6 * steps, TOKENS - 1 - steps, steps, True, True, False, stream]


async def test_a_failing_hook_fails_no_request_and_logs_once(
    start_proxy: StartProxy, start_vllm: Callable[..., ScriptedVllm]
) -> None:
    server = start_vllm()
    proxy = start_proxy(
        models=[vllm_model("acme", server.url)], manifest=MANIFEST.format(url=server.url), callback=BROKEN
    )
    async with proxy.client() as client:
        for stream in (False, True) * 5:
            assert await ask(client, body(CODE, stream=stream)) == "word " * TOKENS
    assert [each["vllm_xargs"] for each in server.bodies] == [{"slipstream_draft_length": 0}] * 10
    assert proxy.log().count("RuntimeError: broken on purpose") == 1
    assert "a request could not be decided" in proxy.log()


async def test_a_fallback_to_another_provider_gets_no_arguments_for_vllm(
    start_proxy: StartProxy, start_vllm: Callable[..., ScriptedVllm]
) -> None:
    """As the page on LiteLLM says."""
    server, other = start_vllm(status=500), start_vllm()
    spare = vllm_model("spare", other.url)
    spare["litellm_params"] |= {"model": "openai/spare", "additional_drop_params": ["vllm_xargs"]}
    proxy = start_proxy(
        models=[vllm_model("acme", server.url), spare],
        manifest=MANIFEST.format(url=server.url),
        router={"fallbacks": [{"acme": ["spare"]}], "num_retries": 0},
    )
    async with proxy.client() as client:
        for stream in (False, True):
            assert await ask(client, body(CODE, stream=stream)) == "word " * TOKENS
    assert "vllm_xargs" in server.bodies[-1]
    assert len(other.bodies) == 2
    assert not any("vllm_xargs" in each for each in other.bodies)
