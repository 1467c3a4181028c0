"""Two stages of a pipeline, each in a process of its own, on the V2 model runner: answers are those of length 0.

The plugin refuses other servers with stages (`inside/check_compatibility.py`), because vLLM 0.32 itself ends there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.vllm.plugin.client import Server, summaries, together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
NGRAMS = {"method": "ngram_gpu", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
STAGES = ("--pipeline-parallel-size", "2", "--async-scheduling", "--speculative-config", json.dumps(NGRAMS))
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "top_p": 0.9, "seed": 7},
    {"temperature": 0, "max_tokens": 5},
)


async def test_stages_answer_as_without_drafts(
    session: aiohttp.ClientSession, start_vllm_v2: Callable[..., VllmServer]
) -> None:
    stages = start_vllm_v2(speculative=False, plugin=True, extra=STAGES)
    server = Server(session, stages.url)
    bodies = [{**body, "max_tokens": 16, **kind} for body, kind in zip(summaries(len(KINDS)), KINDS, strict=True)]
    plain = await together(*(server.chat(body, 0) for body in bodies))
    drafted = await together(*(server.chat(body, length) for body in bodies for length in (2, 4)))
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain for _ in range(2)]
    assert sum(answer.drafted for answer in plain) == 0
    assert sum(answer.accepted for answer in drafted) > 0
    stages.stop()
