"""A draft length per request on a real server: texts, counts, refusals, changes in flight."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.vllm.plugin.client import MODEL, OWN_COUNTERS, Answer, Refused, Server, drafting, summaries, together

pytestmark = pytest.mark.timeout(900)
LENGTHS = (0, 4, 0, 2, 1, 3)
LONG = {"max_tokens": 400, "ignore_eos": True}
LONGER = {"max_tokens": 1200, "ignore_eos": True}  # still runs when a control message comes late


@pytest.fixture(scope="module")
def bodies() -> list[dict[str, Any]]:
    return summaries(len(LENGTHS))


async def test_one_batch_with_lengths_0_to_4(speculative: Server, plain: Server, bodies: list[dict[str, Any]]) -> None:
    expected: list[Answer] = await together(*(plain.chat(body) for body in bodies))
    before = await speculative.counters()
    pairs = list(zip(bodies, LENGTHS, strict=True))
    answers: list[Answer] = await together(*(speculative.chat(body, n, label="summary/long") for body, n in pairs))
    after = await speculative.counters()

    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    for answer, length in zip(answers, LENGTHS, strict=True):
        assert (answer.drafted > 0) == (length > 0)
        assert answer.drafted <= length * answer.drafts
    counted = {"drafts": "drafts", "draft_tokens": "drafted", "accepted_tokens": "accepted"}
    for name in OWN_COUNTERS:
        moved = after[name] - before[name]
        assert moved == sum(getattr(answer, counted[name]) for answer in answers) > 0
        assert after[f"plugin_{name}"] - before[f"plugin_{name}"] == moved
    assert {("summary/long", str(length)) for length in (1, 2, 3, 4)} <= await speculative.labels()


async def test_no_field_means_the_servers_own_length(speculative: Server, bodies: list[dict[str, Any]]) -> None:
    answer = await speculative.chat(bodies[0])
    assert answer.drafted > 3 * answer.drafts


@pytest.mark.parametrize(
    ("length", "path"),
    [
        (3, "/v1/chat/completions"),
        pytest.param(0, "/v1/chat/completions", marks=pytest.mark.slow),
        pytest.param(3, "/v1/completions", marks=pytest.mark.slow),
        pytest.param(0, "/v1/completions", marks=pytest.mark.slow),
    ],
)
async def test_openais_fields_have_the_counts(speculative: Server, path: str, length: int) -> None:
    """Proxies and clients of OpenAI's protocol drop vLLM's own."""
    prompt = {"messages": [{"role": "user", "content": "hello"}]} if "chat" in path else {"prompt": "hello"}
    body = {"model": MODEL, "temperature": 0, **LONG, **prompt, "vllm_xargs": {"slipstream_draft_length": length}}
    whole = await speculative.call("POST", path, body)
    last = await speculative.last_event(path, {**body, "stream_options": {"include_usage": True}})

    assert last["choices"] == []
    assert last["usage"] == {name: whole["usage"][name] for name in last["usage"]}
    for answer in (whole, last):
        counts, details = answer["metrics"]["speculative_decoding"], answer["usage"]["completion_tokens_details"]
        drafted, accepted = counts["num_draft_tokens"], counts["num_accepted_draft_tokens"]
        assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (
            accepted,
            drafted - accepted,
        )
        assert (drafted > 0) == (length > 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
async def test_bad_values_are_refused(speculative: Server, path: str, body: dict[str, Any], stream: bool) -> None:
    for field, value in (
        *(("slipstream_draft_length", value) for value in (-1, 5, 2.5, 2.0, True, "4", [1])),
        *(("slipstream_class", value) for value in ("A b", "a/b/c", "a" * 65, 3)),
    ):
        with pytest.raises(Refused) as refused:
            await speculative.call(
                "POST", path, {"model": MODEL, "stream": stream, **body, "vllm_xargs": {field: value}}
            )
        assert refused.value.status == 400
        error = refused.value.body["error"]
        assert f"vllm_xargs.{field} is {value!r}" in error["message"]
        assert error["param"] == f"vllm_xargs.{field}"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}),
    ],
)
async def test_unknown_fields_of_the_plugin_are_refused(speculative: Server, path: str, body: dict[str, Any]) -> None:
    """A misspelt length would otherwise draft as the server does by default."""
    whole = {"model": MODEL, **body, "vllm_xargs": {"slipstream_draft_lenght": 0}}
    with pytest.raises(Refused) as refused:
        await speculative.call("POST", path, whole)
    assert refused.value.status == 400
    assert "vllm_xargs.slipstream_draft_lenght is unknown" in refused.value.body["error"]["message"]


@pytest.mark.parametrize("value", [True, 5, "4"])
async def test_bad_lengths_of_messages_are_refused(speculative: Server, value: object) -> None:
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
    with pytest.raises(Refused) as refused:
        await speculative.call("POST", "/v1/messages", {**body, "vllm_xargs": {"slipstream_draft_length": value}})
    assert refused.value.status == 400
    assert f"vllm_xargs.slipstream_draft_length is {value!r}" in refused.value.body["error"]["message"]


@pytest.mark.slow  # a long answer
async def test_an_id_with_a_slash_can_be_changed(speculative: Server, bodies: list[dict[str, Any]]) -> None:
    running = asyncio.create_task(speculative.chat(bodies[0], 4, request_id="team/7", **LONGER))
    await drafting(speculative)
    path = "/slipstream/requests/chatcmpl-team/7"
    assert await speculative.call("PUT", path, {"draft_length": 0}) == {"changed": 1}
    assert (await running).id == "chatcmpl-team/7"


@pytest.mark.slow  # long answers; test_control of the contract has the limit
async def test_a_kill_in_flight_keeps_the_text(
    speculative: Server, plain: Server, bodies: list[dict[str, Any]]
) -> None:
    expected = await plain.chat(bodies[0], **LONG)
    free = await speculative.chat(bodies[0], 4, **LONG)
    running = asyncio.create_task(speculative.chat(bodies[0], 4, **LONG))
    try:
        await drafting(speculative)
        await speculative.set_limit(0)
        assert await speculative.call("GET", "/slipstream/limit") == {"limit": 0}
        killed = await running
        assert killed.token_ids == free.token_ids == expected.token_ids
        assert 0 < killed.drafts < free.drafts
        assert (await speculative.chat(bodies[1], 4)).drafts == 0
    finally:
        await speculative.set_limit(None)
    assert (await speculative.chat(bodies[1], 4)).drafts > 0


@pytest.mark.slow  # long answers
async def test_one_running_request_changes(speculative: Server, plain: Server, bodies: list[dict[str, Any]]) -> None:
    expected = await plain.chat(bodies[0], **LONG)
    first = asyncio.create_task(speculative.chat(bodies[0], 4, request_id="abc", **LONG))
    second = asyncio.create_task(speculative.chat(bodies[0], 0, request_id="abc-1", **LONG))
    await drafting(speculative)
    assert await speculative.call("PUT", "/slipstream/requests/chatcmpl-abc", {"draft_length": 0}) == {"changed": 1}
    assert await speculative.call("PUT", "/slipstream/requests/chatcmpl-abc-1", {"draft_length": 4}) == {"changed": 1}
    with pytest.raises(Refused) as refused:
        await speculative.call("PUT", "/slipstream/requests/chatcmpl-ab", {"draft_length": 0})
    assert refused.value.status == 404
    stopped, started = await together(first, second)
    assert stopped.token_ids == started.token_ids == expected.token_ids
    assert stopped.drafts > 0
    assert started.drafts > 0
    assert stopped.accepted < started.accepted
    # The draft model's cache was filled where drafting was off: what it proposes then is as good as ever.
    assert started.accepted / started.drafted > 0.6


@pytest.mark.slow  # long answers; test_control of the contract has the route
async def test_stop_drafting_spares_later_requests(speculative: Server, bodies: list[dict[str, Any]]) -> None:
    whole = await speculative.chat(bodies[0], 4, **LONGER)
    running = asyncio.create_task(speculative.chat(bodies[0], 4, **LONGER))
    await drafting(speculative)
    assert await speculative.call("POST", "/slipstream/stop_drafting") == {"stopped": 1}
    later, stopped = await together(speculative.chat(bodies[1], 3), running)
    assert stopped.token_ids == whole.token_ids
    assert stopped.drafts < whole.drafts
    assert later.drafts > 0


async def test_a_prefix_that_was_decoded_plainly_drafts_as_well(speculative: Server) -> None:
    """Prefix caching hands blocks on whose draft part was skipped; it is computed before they are used."""
    [body] = summaries(1, seed=977)
    plainly = await speculative.chat(body, 0)
    drafted = await speculative.chat(body, 4)
    assert drafted.token_ids == plainly.token_ids
    assert drafted.accepted / drafted.drafted > 0.6
