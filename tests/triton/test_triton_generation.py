"""Slipstream's model in a real Triton: what goes in, what comes out."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import httpx
import pytest
from slipstream_engine.embedded import demo

GREEDY: dict[str, Any] = {"messages": demo.CALL_SUMMARY, "temperature": 0.0, "max_tokens": 96}


async def test_stream_sends_deltas_and_totals_that_add_up(triton: Any) -> None:
    for _ in range(5):  # Tokens that wait for a busy machine come in one part.
        answer = await triton.generate(**GREEDY, stream=True, draft_tokens=4)
        _check_totals(answer)
        if len(answer.parts) > 3:
            return
    pytest.fail("no answer came in more than 3 parts")


def _check_totals(answer: Any) -> None:
    assert answer.error is None
    assert [part.finish_reason for part in answer.parts[:-1]] == [""] * (len(answer.parts) - 1)
    assert answer.last.finish_reason in ("stop", "length")
    assert answer.last.output_tokens == len(answer.token_ids)
    for earlier, later in pairwise(answer.parts):
        assert later.output_tokens == earlier.output_tokens + len(later.token_ids)
        assert later.drafted >= earlier.drafted
        assert later.prompt_tokens == earlier.prompt_tokens
    assert sum(answer.last.rejected_at) <= answer.last.steps
    assert answer.last.engine_seconds > 0.0
    assert [part.engine_seconds for part in answer.parts[:-1]] == [None] * (len(answer.parts) - 1)


async def test_without_stream_one_response_has_everything(triton: Any) -> None:
    whole = await triton.generate(**GREEDY)
    streamed = await triton.generate(**GREEDY, stream=True)
    assert len(whole.parts) == 1
    assert whole.text == streamed.text
    assert whole.token_ids == streamed.token_ids
    assert whole.last.finish_reason == streamed.last.finish_reason


async def test_messages_ids_and_text_of_one_prompt_give_one_answer(triton: Any, tokenizer: Any) -> None:
    prompt_ids = tokenizer.render_chat(demo.ONE_LINE_STATUS)
    by_messages = await triton.generate(messages=demo.ONE_LINE_STATUS, temperature=0.0, max_tokens=24)
    by_ids = await triton.generate(input_ids=list(prompt_ids), temperature=0.0, max_tokens=24)
    assert by_messages.token_ids == by_ids.token_ids
    assert by_messages.last.prompt_tokens == len(prompt_ids)
    by_text = await triton.generate(text_input="Order 48213: status", temperature=0.0, max_tokens=4)
    assert by_text.last.prompt_tokens == len(tokenizer.encode("Order 48213: status"))


@pytest.mark.parametrize("draft_tokens", [1, 3, 6])
async def test_greedy_speculation_gives_the_tokens_of_plain_decoding(triton: Any, draft_tokens: int) -> None:
    plain = await triton.generate(**GREEDY)
    speculative = await triton.generate(**GREEDY, draft_tokens=draft_tokens)
    assert speculative.text == plain.text
    assert speculative.token_ids == plain.token_ids
    assert plain.last.drafted == 0
    assert 0 < speculative.last.accepted <= speculative.last.drafted
    assert speculative.last.steps < plain.last.steps


async def test_requests_whose_draft_lengths_the_engine_chooses_get_the_tokens_of_plain_decoding(triton: Any) -> None:
    plain = await triton.generate(**GREEDY)
    drafted = 0
    async with asyncio.timeout(60):
        while not drafted:  # an engine whose steps were slow by chance drafts nothing for some steps
            answers = await triton.generate_all([GREEDY | {"draft_tokens": 6, "adaptive": True}] * 5)
            assert {tuple(answer.token_ids) for answer in answers} == {tuple(plain.token_ids)}
            assert all(answer.last.drafted <= 6 * answer.last.steps for answer in answers)
            drafted = sum(answer.last.drafted for answer in answers)


async def test_requests_with_different_draft_lengths_share_a_batch(triton: Any) -> None:
    alone = await triton.generate(**GREEDY)
    answers = await triton.generate_all([GREEDY | {"draft_tokens": length} for length in range(7)])
    assert [answer.error for answer in answers] == [None] * 7
    assert {tuple(answer.token_ids) for answer in answers} == {tuple(alone.token_ids)}
    assert [answer.last.drafted > 0 for answer in answers] == [False] + [True] * 6


async def test_a_seed_gives_the_same_tokens_alone_and_among_others(triton: Any) -> None:
    sampled = {"messages": demo.CALL_SUMMARY, "max_tokens": 48, "seed": 7, "draft_tokens": 3}
    alone = await triton.generate(**sampled)
    others = [sampled | {"seed": seed} for seed in (1, 2, 3)]
    among, *_ = await triton.generate_all([sampled, *others])
    assert among.token_ids == alone.token_ids


async def test_resumed_answer_continues_after_the_committed_tokens(triton: Any) -> None:
    whole = await triton.generate(**GREEDY)
    committed = whole.token_ids[:10]
    rest = await triton.generate(**GREEDY, resume_ids=committed)
    assert rest.error is None
    assert committed + rest.token_ids == whole.token_ids
    assert whole.text.endswith(rest.text)


async def test_max_tokens_ends_an_answer(triton: Any) -> None:
    answer = await triton.generate(**(GREEDY | {"max_tokens": 5, "draft_tokens": 6}))
    assert answer.last.finish_reason == "length"
    assert len(answer.token_ids) == 5


async def test_stop_string_ends_an_answer_before_it(triton: Any) -> None:
    whole = await triton.generate(**GREEDY)
    stop = whole.text[20:26]
    answer = await triton.generate(**GREEDY, stop=[stop, "never there"], stream=True, draft_tokens=6)
    assert answer.last.finish_reason == "stop"
    assert answer.text == whole.text[: whole.text.index(stop)]


async def test_without_max_tokens_an_answer_ends_by_itself(triton: Any) -> None:
    answer = await triton.generate(messages=demo.ONE_LINE_STATUS, temperature=0.0)
    assert answer.error is None
    assert answer.last.finish_reason in ("stop", "length")
    assert answer.text.strip()


async def test_plain_http_gives_the_whole_answer_in_one_response(triton_server: Any) -> None:
    url = f"http://{triton_server.ports.host}:{triton_server.ports.http}/v2/models/embedded/generate"
    body = {"text_input": "Order 48213", "max_tokens": 5, "temperature": 0.0, "draft_tokens": 2}
    async with httpx.AsyncClient(timeout=30) as client:
        answer = (await client.post(url, json=body)).json()
        refused = await client.post(url, json=body | {"max_tokens": 0})
    assert answer["output_tokens"] == len(answer["token_ids"]) <= 5
    assert answer["finish_reason"] in ("stop", "length")
    assert refused.status_code == 400
    assert "max_tokens: expected 1 or more, got 0" in refused.json()["error"]
