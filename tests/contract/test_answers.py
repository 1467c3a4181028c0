"""Answers with drafts equal those of plain decoding, whole and streamed, and have the counts of their drafts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.engine_client import CHAT, COMPLETION, Engine

PATHS = [CHAT, COMPLETION]


def lengths(engine: Engine) -> list[int]:
    return sorted({0, 1, engine.longest})


@pytest.mark.parametrize("path", PATHS)
async def test_greedy_answers_do_not_depend_on_the_draft_length(engine: Engine, path: str) -> None:
    answers = [await engine.ask(path, length=length) for length in lengths(engine)]
    assert len({(answer.ids, answer.texts, answer.finish) for answer in answers}) == 1
    assert answers[0].ids


async def test_seeded_answers_do_not_depend_on_the_draft_length(engine: Engine) -> None:
    assert engine.facts["acceptance"] == "equality"
    sampling = {"temperature": 0.9, "top_p": 0.95, "seed": 11}
    answers = [await engine.ask(length=length, **sampling) for length in (*lengths(engine), engine.longest)]
    assert len({answer.ids for answer in answers}) == 1
    other = await engine.ask(length=0, **{**sampling, "seed": 12, "temperature": 2.0})
    assert other.ids != answers[0].ids


async def test_adaptive_drafts_change_no_answer(engine: Engine) -> None:
    plain = await engine.ask(length=0)
    adaptive = await engine.ask(length=engine.longest, vllm_xargs={"slipstream_adaptive": 1})
    assert adaptive.ids == plain.ids


async def test_protection_changes_no_answer(engine: Engine) -> None:
    if not engine.facts.get("protects"):
        pytest.skip("this engine does not protect requests from the drafts of others")
    plain, protected = await engine.ask(length=0), await engine.ask(length=0, vllm_xargs={"slipstream_protect": 1})
    assert protected.ids == plain.ids


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("speculative", [False, True], ids=["plain", "speculative"])
async def test_a_stream_is_the_whole_answer_in_parts(engine: Engine, path: str, speculative: bool) -> None:
    length = engine.longest if speculative else 0
    whole = await engine.ask(path, length=length)
    streamed = await engine.streamed(path, length=length)
    assert streamed[:3] == whole[:3]
    assert streamed.body["choices"] == []
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert streamed.body["usage"][count] == whole.body["usage"][count]
    for count in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram"):
        assert streamed.counts[count] == whole.counts[count]


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_has_the_counts_of_its_drafts(engine: Engine, path: str) -> None:
    for length in (0, engine.longest):
        answer = await engine.ask(path, length=length)
        counts, details = answer.counts, answer.body["usage"]["completion_tokens_details"]
        drafted, accepted = counts["num_draft_tokens"], counts["num_accepted_draft_tokens"]
        assert (drafted > 0) == (length > 0)
        assert counts["num_spec_steps"] == sum(counts["acceptance_histogram"]) <= drafted
        assert drafted <= length * counts["num_spec_steps"]
        assert details["accepted_prediction_tokens"] == accepted
        assert details["rejected_prediction_tokens"] == drafted - accepted
        assert counts["engine_seconds"] > 0


async def test_the_usage_counts_tokens(engine: Engine) -> None:
    answer = await engine.ask(max_tokens=7, ignore_eos=True)
    usage = answer.body["usage"]
    assert (len(answer.ids), usage["completion_tokens"], answer.finish) == (7, 7, ("length",))
    assert usage["prompt_tokens"] == len(answer.body["prompt_token_ids"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7


async def test_a_prompt_of_token_ids_is_the_prompt(engine: Engine) -> None:
    of_chat = await engine.ask(length=0)
    ids = of_chat.body["prompt_token_ids"]
    of_ids = await engine.ask(COMPLETION, length=engine.longest, prompt=ids)
    assert of_ids.ids == of_chat.ids
    assert of_ids.body["choices"][0]["prompt_token_ids"] == ids


async def test_choices_have_numbers_and_seeds_of_their_own(engine: Engine) -> None:
    sampling: dict[str, Any] = {"temperature": 1.5, "seed": 3, "n": 3, "ignore_eos": True, "max_tokens": 16}
    plain = await engine.ask(length=0, **sampling)
    speculative = await engine.ask(length=engine.longest, **sampling)
    assert plain.token_ids == speculative.token_ids
    assert len(set(plain.token_ids)) == 3
    assert plain.body["usage"]["completion_tokens"] == 48


async def test_several_prompts_are_answered_in_their_order(engine: Engine) -> None:
    prompts = ["Order 48213: desk lamp.", "Reason for contact:"]
    alone = [(await engine.ask(COMPLETION, prompt=prompt, max_tokens=8)).ids for prompt in prompts]
    together = await engine.ask(COMPLETION, prompt=prompts, max_tokens=8)
    assert together.token_ids == tuple(alone)


@pytest.mark.parametrize("speculative", [False, True], ids=["plain", "speculative"])
async def test_an_answer_ends_before_its_stop_string(engine: Engine, speculative: bool) -> None:
    whole = (await engine.ask(length=0)).text
    stop = whole[len(whole) // 2 :][:3]
    answer = await engine.ask(length=engine.longest if speculative else 0, stop=["☃", stop])
    assert (answer.text, answer.finish) == (whole[: whole.index(stop)], ("stop",))


async def test_an_answer_ends_at_its_stop_token(engine: Engine) -> None:
    ids = (await engine.ask(length=0)).ids
    token = ids[len(ids) // 2]
    for length in (0, engine.longest):
        answer = await engine.ask(length=length, stop_token_ids=[token])
        assert answer.ids == ids[: ids.index(token) + 1]
        assert answer.finish == ("stop",)


async def test_messages_and_their_parts_are_in_the_prompt(engine: Engine) -> None:
    async def prompt(*messages: dict[str, Any]) -> list[int]:
        answer = await engine.ask(messages=list(messages), max_tokens=1)
        ids: list[int] = answer.body["prompt_token_ids"]
        assert answer.body["usage"]["prompt_tokens"] == len(ids)
        return ids

    user = {"role": "user", "content": "Reply briefly."}
    parts = [{"type": "text", "text": "Reply "}, {"type": "text", "text": "briefly."}]
    whole = await prompt(user)
    in_lines = await prompt({"role": "user", "content": "Reply \nbriefly."})  # vLLM joins parts with a line end
    assert await prompt({"role": "user", "content": parts}) in (whole, in_lines)
    assert len(await prompt({"role": "user", "content": parts[:1]})) < len(whole)
    assert len(await prompt({"role": "system", "content": "You are an agent."}, user)) > len(whole)
    assert await prompt({**user, "name": "mara"})
