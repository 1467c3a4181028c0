"""vLLM behind the tensors of the Triton model: the same contract, and under greedy decoding the same tokens."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from slipstream_engine.embedded import demo

GREEDY: dict[str, Any] = {"messages": demo.CALL_SUMMARY, "temperature": 0.0, "max_tokens": 96}
PROMPTS = (demo.CALL_SUMMARY, demo.ONE_LINE_STATUS, demo.EXTRACTION)
LONGEST = 4


async def test_stream_sends_deltas_and_totals_that_add_up(vllm_model: Any) -> None:
    answer = await vllm_model.generate(**GREEDY, stream=True, draft_tokens=LONGEST)
    assert answer.error is None
    assert len(answer.parts) > 3
    assert [part.finish_reason for part in answer.parts[:-1]] == [""] * (len(answer.parts) - 1)
    assert answer.last.finish_reason in ("stop", "length")
    for earlier, later in pairwise(answer.parts):
        assert later.output_tokens == earlier.output_tokens + len(later.token_ids)
        assert earlier.drafted is None  # vLLM counts drafts at the end
        assert later.prompt_tokens == earlier.prompt_tokens
    assert answer.last.output_tokens == len(answer.token_ids)
    assert answer.last.drafted > 0


async def test_without_stream_one_response_has_everything(vllm_model: Any) -> None:
    whole = await vllm_model.generate(**GREEDY)
    streamed = await vllm_model.generate(**GREEDY, stream=True)
    assert len(whole.parts) == 1
    assert (whole.text, whole.token_ids) == (streamed.text, streamed.token_ids)
    assert whole.last.finish_reason == streamed.last.finish_reason
    assert min(whole.last.engine_seconds, streamed.last.engine_seconds) > 0.0
    assert {part.engine_seconds for part in streamed.parts[:-1]} == {None}


async def test_counts_are_those_of_the_draft_length(vllm_model: Any) -> None:
    plain = await vllm_model.generate(**GREEDY)
    assert (plain.last.drafted, plain.last.accepted, plain.last.steps) == (0, 0, plain.last.output_tokens - 1)
    for length in range(1, LONGEST + 1):
        last = (await vllm_model.generate(**GREEDY, draft_tokens=length)).last
        assert 0 < last.accepted <= last.drafted <= length * last.steps
        assert last.steps < plain.last.steps
        assert not any(last.rejected_at[length:])
        assert 0 < sum(last.rejected_at) <= last.steps


async def test_a_draft_length_beyond_the_engines_is_its_longest(vllm_model: Any) -> None:
    assert (await vllm_model.generate(**GREEDY, draft_tokens=60)).last.drafted == (
        await vllm_model.generate(**GREEDY, draft_tokens=LONGEST)
    ).last.drafted


@pytest.mark.parametrize("messages", PROMPTS, ids=["summary", "status", "extraction"])
async def test_greedy_answers_are_those_of_the_embedded_engine_at_every_length(
    vllm_model: Any, embedded_model: Any, messages: Any
) -> None:
    request = {"messages": messages, "temperature": 0.0, "max_tokens": 80}
    embedded = await embedded_model.generate(**request)
    for length in range(LONGEST + 1):
        answer = await vllm_model.generate(**request, draft_tokens=length)
        assert (answer.text, answer.token_ids) == (embedded.text, embedded.token_ids)
        assert answer.last.finish_reason == embedded.last.finish_reason
        assert answer.last.prompt_tokens == embedded.last.prompt_tokens


async def test_requests_of_all_lengths_and_samplings_share_a_batch(vllm_model: Any) -> None:
    """Greedy answers must not depend on neighbours that sample, nor a sampled one on how it was batched."""
    requests = [
        {
            "messages": PROMPTS[number % len(PROMPTS)],
            "temperature": 0.7 * (number % 2),
            "seed": number,
            "max_tokens": 32,
            "draft_tokens": number % (LONGEST + 1),
            "stream": number % 4 < 2,
        }
        for number in range(24)
    ]
    greedy = [await vllm_model.generate(messages=prompt, temperature=0.0, max_tokens=32) for prompt in PROMPTS]
    answers = await vllm_model.generate_all(requests)
    for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        assert answer.error is None
        assert (answer.last.drafted > 0) == (request["draft_tokens"] > 0)
        if not request["temperature"]:
            assert answer.token_ids == greedy[number % len(PROMPTS)].token_ids


async def test_a_seed_gives_a_plain_answer_again(vllm_model: Any) -> None:
    request = {"text_input": "a", "temperature": 1.5, "max_tokens": 24}
    one, again, other = [await vllm_model.generate(**request, seed=seed) for seed in (7, 7, 8)]
    assert one.token_ids == again.token_ids != other.token_ids


async def test_the_seed_that_vllm_takes_for_none_gives_an_answer_again(vllm_model: Any) -> None:
    request = {"text_input": "a", "temperature": 1.5, "max_tokens": 24, "seed": -1}
    one, again = [await vllm_model.generate(**request) for _ in range(2)]
    assert one.token_ids == again.token_ids


async def test_messages_ids_and_text_of_one_prompt_give_one_answer(vllm_model: Any, embedded_model: Any) -> None:
    request = {"temperature": 0.0, "max_tokens": 8}
    by_text = await vllm_model.generate(text_input="Order 48213: status", **request)
    embedded = await embedded_model.generate(text_input="Order 48213: status", **request)
    assert by_text.token_ids == embedded.token_ids
    assert by_text.last.prompt_tokens == embedded.last.prompt_tokens
    by_ids = await vllm_model.generate(input_ids=by_text.token_ids, **request)
    assert by_ids.last.prompt_tokens == len(by_text.token_ids)


@pytest.mark.parametrize("draft_tokens", [0, LONGEST])
async def test_stop_string_ends_the_text_before_it(vllm_model: Any, embedded_model: Any, draft_tokens: int) -> None:
    request = {**GREEDY, "stop": ["Customer", "never there"], "draft_tokens": draft_tokens}
    streamed = await vllm_model.generate(**request, stream=True)
    embedded = await embedded_model.generate(**request)
    assert streamed.text == embedded.text != ""
    assert "Customer" not in streamed.text
    assert streamed.last.finish_reason == "stop"
    assert streamed.token_ids == embedded.token_ids


async def test_text_is_unicode_in_and_out_and_never_ends_inside_a_character(vllm_model: Any) -> None:
    text = "Größe 日本語 🚀 café – Order 48213 🧡 "
    answer = await vllm_model.generate(text_input=text, temperature=1.5, seed=3, max_tokens=200, stream=True)
    assert answer.error is None
    for part in answer.parts[:-1]:
        assert not part.text_output.endswith("\ufffd")


async def test_margins_tell_how_clearly_each_token_was_preferred(vllm_model: Any, embedded_model: Any) -> None:
    request = {**GREEDY, "max_tokens": 24, "margins": True}
    embedded = (await embedded_model.generate(**request)).last.margins
    for length in (0, LONGEST):
        answer = await vllm_model.generate(**request, draft_tokens=length)
        assert answer.last.margins == pytest.approx(embedded, abs=1e-3)
    assert (await vllm_model.generate(**GREEDY)).last.margins is None


async def test_facts_tell_what_the_engine_can_do(vllm_model: Any, embedded_model: Any) -> None:
    vllm, embedded = [await _facts(model) for model in (vllm_model, embedded_model)]
    assert (vllm["engine"], vllm["max_draft_length"], vllm["openai"]) == ("vllm", LONGEST, True)
    assert vllm["resumes_sampled"] is False
    assert vllm["context_tokens"] >= 2048
    assert vllm["version"]
    assert (embedded["engine"], embedded["openai"], embedded["resumes_sampled"]) == ("slipstream", False, True)
    assert embedded["max_draft_length"] > 0


async def _facts(model: Any) -> Any:
    async for result, error in model.open(engine_facts=True):
        assert error is None
        return json.loads(result.as_numpy("engine_facts").tobytes())
    pytest.fail("no answer")
