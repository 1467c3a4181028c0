"""vLLM's V2 model runner with asynchronous scheduling, as GPUs run it: answers do not depend on the draft length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.vllm.plugin.client import Answer, Server, summaries, together

pytestmark = pytest.mark.timeout(900)
LENGTHS = (0, 2, 4)
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "top_p": 0.9, "seed": 7},
    {"temperature": 2.0, "seed": 8, "repetition_penalty": 1.2},
)


@pytest.fixture(scope="module")
def v2_server(start_vllm_v2: Callable[..., VllmServer]) -> Iterator[VllmServer]:
    server = start_vllm_v2(extra=("--async-scheduling",))
    yield server
    server.stop()


@pytest.fixture
def server(session: aiohttp.ClientSession, v2_server: VllmServer) -> Server:
    return Server(session, v2_server.url)


async def test_the_server_is_like_one_on_a_gpu(server: Server) -> None:
    description = await server.call("GET", "/slipstream")
    assert (description["scheduler"], description["acceptance"]) == ("async", "equality")


async def test_answers_of_one_batch_are_the_same_at_every_length(server: Server) -> None:
    before = await server.counters()
    kinds = [{**body, **kind, "max_tokens": 16} for body, kind in zip(summaries(len(KINDS)), KINDS, strict=True)]
    answers: list[Answer] = await together(*(server.chat(kind, length) for kind in kinds for length in LENGTHS))
    by_length = [answers[index :: len(LENGTHS)] for index in range(len(LENGTHS))]
    plain, *drafted = [[answer.token_ids for answer in some] for some in by_length]
    assert drafted == [plain, plain]
    assert [sum(answer.drafted for answer in some) > 0 for some in by_length] == [False, True, True]
    assert sum(answer.accepted for answer in answers) > len(answers)
    after = await server.counters()
    for name, counted in (("draft_tokens", "drafted"), ("accepted_tokens", "accepted"), ("drafts", "drafts")):
        total = sum(getattr(answer, counted) for answer in answers)
        assert after[name] - before[name] == after[f"plugin_{name}"] - before[f"plugin_{name}"] == total
