"""The control routes: description, limit, stop. Also resumption, and clients that disconnect."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.engine_client import CHAT, COMPLETION, Engine, Refused
from tests.support.polling import soon

ENDLESS = {"ignore_eos": True, "max_tokens": 1200}


@pytest.fixture
async def limited(engine: Engine) -> AsyncIterator[Engine]:
    yield engine
    await engine.set_limit(None)


async def test_an_engine_describes_itself(engine: Engine) -> None:
    facts = engine.facts
    assert facts["max_draft_length"] >= 1
    assert facts["acceptance"] in ("equality", "rejection")
    assert facts["resumes"] in ("greedy", "seeded")
    assert isinstance(facts["adaptive"], bool)
    assert isinstance(facts.get("protects", False), bool)
    assert isinstance(facts["plugin"], str)
    assert facts["instance"]
    assert facts["limit"] is None
    assert (await engine.http.get("/health")).status_code == 200


async def test_a_limit_holds_for_every_request(limited: Engine) -> None:
    unlimited = await limited.ask()
    assert await limited.set_limit(0) == 0
    assert (await limited.http.get("/slipstream")).json()["limit"] == 0
    plain = await limited.ask()
    assert await limited.set_limit(1) == 1
    short = await limited.ask(length=limited.longest)
    assert await limited.set_limit(None) is None
    assert plain.counts["num_draft_tokens"] == 0
    assert 0 < short.counts["num_draft_tokens"] <= short.counts["num_spec_steps"]
    assert unlimited.counts["num_draft_tokens"] > unlimited.counts["num_spec_steps"]
    assert unlimited.ids == plain.ids == short.ids


async def test_a_limit_holds_for_running_answers(limited: Engine) -> None:
    async with limited.stream(length=limited.longest, stream_options={"include_usage": True}, **ENDLESS) as events:
        await anext(events)
        await limited.set_limit(0)
        last = [event async for event in events][-1]
    counts = last["metrics"]["speculative_decoding"]
    assert counts["num_spec_steps"] < last["usage"]["completion_tokens"] - counts["num_accepted_draft_tokens"]


@pytest.mark.parametrize("limit", [-1, 1000, True, "0", 1.5])
async def test_a_bad_limit_is_refused(engine: Engine, limit: object) -> None:
    with pytest.raises(Refused) as refused:
        await engine.set_limit(limit)
    assert refused.value.status == 400
    assert refused.value.error["param"] == "limit"


async def test_stop_drafting_ends_the_drafts_of_running_answers(engine: Engine) -> None:
    async with engine.stream(length=engine.longest, stream_options={"include_usage": True}, **ENDLESS) as events:
        await anext(events)
        assert await engine.stop_drafting() == 1
        last = [event async for event in events][-1]
    counts, usage = last["metrics"]["speculative_decoding"], last["usage"]
    assert counts["num_spec_steps"] < usage["completion_tokens"] - 1 - counts["num_accepted_draft_tokens"]
    assert (await engine.ask(length=engine.longest)).counts["num_draft_tokens"] > 0


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_an_answer_goes_on_after_its_tokens(engine: Engine, path: str) -> None:
    whole = await engine.ask(path, length=0, max_tokens=24, ignore_eos=True)
    for length in (0, engine.longest):
        rest = await engine.streamed(
            path,
            length=length,
            max_tokens=14,
            ignore_eos=True,
            vllm_xargs={"slipstream_resume_token_ids": list(whole.ids[:10])},
        )
        assert rest.ids == whole.ids[10:]
        assert whole.text.endswith(rest.text)
        assert rest.body["usage"]["completion_tokens"] == 14
        assert rest.body["usage"]["prompt_tokens"] == whole.body["usage"]["prompt_tokens"] + 10


async def test_a_seeded_answer_goes_on_where_the_engine_promises_it(engine: Engine) -> None:
    sampling = {"temperature": 1.0, "seed": 5, "ignore_eos": True}
    whole = await engine.ask(length=0, max_tokens=24, **sampling)
    xargs = {"slipstream_resume_token_ids": list(whole.ids[:10])}
    rest = await engine.ask(length=engine.longest, max_tokens=14, vllm_xargs=xargs, **sampling)
    assert len(rest.ids) == 14
    assert rest.ids == whole.ids[10:] or engine.facts["resumes"] == "greedy"


async def test_a_client_that_leaves_frees_its_place(engine: Engine) -> None:
    for _ in range(3):
        async with engine.stream(length=engine.longest, **ENDLESS) as events:
            await anext(events)

    async def none_runs() -> bool:
        return await engine.stop_drafting() == 0

    await soon(none_runs, "no request runs")
