"""The V2 model runner with each drafting method and each field that changes sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.vllm.plugin.client import MODEL, Refused, Server, summaries, together
from tests.vllm.plugin.test_sampling import compare_first_tokens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LENGTHS = (0, 2, 4)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "hot": {"temperature": 1.8},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "top-k": {"temperature": 2.0, "top_k": 20},
    "frequency": {"temperature": 1.8, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    "repetition": {"temperature": 2.0, "repetition_penalty": 1.2},
    "min-tokens": {"temperature": 2.0, "min_tokens": 12},
    "bad-words": {"temperature": 1.8, "bad_words": ["the", " a", "customer"]},
    "allowed": {"temperature": 2.0, "allowed_token_ids": list(range(5, 900))},
    "grammar": {"temperature": 2.0, "structured_outputs": {"regex": r"[a-z]{3,9} [a-z]{3,9} [a-z]{3,9}\."}},
    "choices": {"temperature": 2.0, "n": 2},
    "scores": {"temperature": 2.0, "logprobs": True, "top_logprobs": 3},
    "scores of the likeliest": {"temperature": 0, "logprobs": True, "top_logprobs": 3},
}
PAIRS = 200  # first two tokens of as many answers, at either length
CUT = 5  # tokens of the first server, in a resumed answer


_ASYNC = ("--async-scheduling",)
METHODS = {
    "draft_model": ("draft_model", _ASYNC),
    "ngram": ("ngram", ()),  # vLLM schedules n-grams synchronously
    "both": ("draft_model", (*_ASYNC, "--additional-config", '{"slipstream_hybrid": true}')),
}


@pytest.fixture(scope="module", params=METHODS)
def server_of(request: pytest.FixtureRequest, start_vllm_v2: Callable[..., VllmServer]) -> Iterator[VllmServer]:
    method, extra = METHODS[request.param]
    server = start_vllm_v2(method=method, extra=extra)
    yield server
    server.stop()


@pytest.fixture
def server(session: aiohttp.ClientSession, server_of: VllmServer) -> Server:
    return Server(session, server_of.url)


@pytest.mark.parametrize("kind", KINDS)
async def test_tokens_and_scores_are_the_same_at_every_length(server: Server, kind: str) -> None:
    [body] = summaries(1)
    whole = {"model": MODEL, "return_token_ids": True, **body, "seed": 11, "max_tokens": 16, **KINDS[kind]}
    answers = await together(
        *(
            server.call("POST", "/v1/chat/completions", {**whole, "vllm_xargs": {"slipstream_draft_length": length}})
            for length in LENGTHS
        )
    )
    plain, *drafted = [[choice["token_ids"] for choice in answer["choices"]] for answer in answers]
    assert drafted == [plain, plain]
    first, *others = [_scores(answer) for answer in answers]
    assert others == [pytest.approx(first, abs=1e-4)] * 2
    assert len(first) > 0 or "logprobs" not in whole


def _scores(answer: Any) -> list[float]:
    """All log-probabilities of an answer's tokens and of their alternatives."""
    tokens = [token for choice in answer["choices"] for token in (choice["logprobs"] or {}).get("content", ())]
    return [top["logprob"] for token in tokens for top in token["top_logprobs"]]


async def test_first_two_tokens_have_the_same_distribution(server: Server) -> None:
    await compare_first_tokens(server)


async def test_another_server_continues_a_seeded_answer_with_the_same_tokens(
    session: aiohttp.ClientSession, server: Server, start_vllm_v2: Callable[..., VllmServer]
) -> None:
    other = start_vllm_v2()
    prompt = list(range(100, 130))
    body = {"model": MODEL, "prompt": prompt, "temperature": 2.0, "top_k": 50, "ignore_eos": True}
    for seed in range(5):
        whole = await _completed(server, {**body, "seed": seed, "max_tokens": 16}, 4)
        resumed = {**body, "seed": seed, "prompt": [*prompt, *whole[:CUT]], "max_tokens": 16 - CUT}
        for length in (0, 4):
            assert await _completed(Server(session, other.url), resumed, length) == whole[CUT:]
    other.stop()


async def _completed(server: Server, body: dict[str, Any], length: int) -> list[int]:
    whole = {**body, "return_token_ids": True, "vllm_xargs": {"slipstream_draft_length": length}}
    [choice] = (await server.call("POST", "/v1/completions", whole))["choices"]
    tokens: list[int] = choice["token_ids"]
    return tokens


@pytest.mark.parametrize("field", [{"logit_bias": {"5": 5.0}}, {"min_p": 0.1}, {"logprob_token_ids": [5, 6]}])
async def test_a_field_that_drafts_would_change_is_refused(server: Server, field: dict[str, Any]) -> None:
    [body] = summaries(1)
    with pytest.raises(Refused, match=next(iter(field))) as refused:
        await server.chat(body, 0, temperature=1.0, logprobs=True, **field)
    assert refused.value.status == 400
