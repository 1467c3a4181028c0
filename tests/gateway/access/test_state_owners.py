"""Stored state belongs to the key that made it, or whose scopes name it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from slipstream_core.errors import UpstreamUnavailable
from slipstream_core.redis.redis_state_owners import MOST_OWNED, RedisStateOwners
from slipstream_gateway.access.state_owners import MOST_IDS, MOST_IDS_IN_ALL, MOST_KEYS, StateOwners

from tests.gateway.key_file import Keys
from tests.support.polling import PATIENCE_S
from tests.support.redis_server import RedisServer

PERMITTED = ("--parameter", "previous_response_id", "--parameter", "item_reference")
REFERENCE = {"type": "item_reference", "id": "msg_up"}
LATER = [
    {"previous_response_id": "resp_up", "input": "tokens=2"},
    {"input": [REFERENCE, {"role": "user", "content": "tokens=2"}]},
]


def post(url: str, key: str, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{url}/v1/responses", json={"model": "acme", **body}, headers=headers, timeout=PATIENCE_S)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("later", LATER, ids=["response", "item"])
def test_only_the_key_that_made_a_response_may_name_it(
    served: Callable[..., Any], keys: Keys, later: dict[str, Any], stream: bool
) -> None:
    maker, other = keys.create(*PERMITTED), keys.create(*PERMITTED)
    running = served()
    early = post(running.url, maker, **later)
    assert post(running.url, maker, input="tokens=2", stream=stream).status_code == 200
    assert post(running.url, maker, **later).status_code == 200
    stranger = post(running.url, other, **later)
    assert (stranger.status_code, stranger.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert (stranger.status_code, stranger.json()) == (early.status_code, early.json())
    assert len(running.upstream.requests) == 2


USER = {"role": "user", "content": "tokens=2"}
FILE = {"role": "user", "content": [{"type": "input_text", "text": "tokens=2"}, {"type": "input_file", "file_id": "x"}]}
NAMED = [
    ("conversation", {"conversation": "x"}),
    ("conversation", {"conversation": {"id": "x"}}),
    ("prompt", {"prompt": {"id": "x"}}),
    ("file_id", {"input": [FILE]}),
    ("file_id", {"input": [USER, {"type": "computer_call_output", "output": {"file_ids": ["own_1", "x"]}}, USER]}),
    ("item_reference", {"input": [{"type": "item_reference", "id": "x"}, USER]}),
]


@pytest.mark.parametrize(("parameter", "body"), NAMED)
def test_scopes_name_state_that_was_made_without_the_gateway(
    served: Callable[..., Any], keys: Keys, parameter: str, body: dict[str, Any]
) -> None:
    key = keys.create("--parameter", parameter, "--state", "own_*")
    running = served()
    foreign = post(running.url, key, **{"input": "tokens=2", **body})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (400, "previous_response_not_found")
    named = json.loads(json.dumps(body).replace('"x"', '"own_2"'))
    assert post(running.url, key, **{"input": "tokens=2", **named}).status_code == 200


@pytest.mark.parametrize("name", ["document", "schema"])
def test_file_in_a_variable_of_a_stored_prompt_needs_an_owner(
    served: Callable[..., Any], keys: Keys, name: str
) -> None:
    key = keys.create("--parameter", "prompt", "--state", "pmpt_1")
    running = served()
    prompt = {"id": "pmpt_1", "variables": {name: {"type": "input_file", "file_id": "file-1"}}}
    assert post(running.url, key, prompt=prompt, input="tokens=2").status_code == 400
    assert running.upstream.requests == []


def test_response_with_an_id_of_the_clients_choice_is_nobodys(served: Callable[..., Any], keys: Keys) -> None:
    key = keys.create(*PERMITTED, "--parameter", "request_id")
    running = served()
    assert post(running.url, key, input="tokens=2", request_id="resp_up").status_code == 200
    assert post(running.url, key, **LATER[0]).status_code == 400


def test_refused_request_frees_its_place(served: Callable[..., Any], keys: Keys) -> None:
    key = keys.create(*PERMITTED, "--concurrent", "1")
    running = served()
    assert [post(running.url, key, **LATER[0]).status_code for _ in range(3)] == [400, 400, 400]
    assert post(running.url, key, input="tokens=2").status_code == 200


async def test_owners_are_shared_through_redis_and_known_alone_without_it(redis: RedisServer) -> None:
    here, there = [StateOwners(RedisStateOwners(redis.url, pause_s=0.0)) for _ in range(2)]
    await here.add("a", ["resp_1", "msg_1"])
    await there.check("a", ["resp_1", "msg_1"])
    with pytest.raises(Exception, match="'resp_1' was not found"):
        await there.check("b", ["resp_1"])
    with pytest.raises(Exception, match="'msg_1' was not found"):
        await there.check("a", ["msg_1", "resp_2"])
    redis.kill()
    await here.add("a", ["resp_3"])
    await here.check("a", ["resp_1", "resp_3"])
    for owner in "ab":  # a retry may succeed; the same answer for other keys shows nothing
        with pytest.raises(UpstreamUnavailable):
            await there.check(owner, ["resp_1"])
    redis.heal()
    await here.add("a", ["resp_4"])
    await there.check("a", ["resp_4"])
    await here.aclose()
    await there.aclose()


async def test_redis_that_hangs_is_asked_once_for_a_while(redis: RedisServer) -> None:
    owners = StateOwners(RedisStateOwners(redis.url, pause_s=PATIENCE_S))
    await owners.add("a", ["resp_1"])
    redis.pause()
    await owners.add("a", ["resp_2"])
    redis.resume()
    await owners.add("a", ["resp_3"])
    await owners.aclose()
    with redis.client() as client:
        assert client.zcard("slipstream:owned:{a}") <= 2


def test_request_that_names_thousands_is_refused(served: Callable[..., Any], keys: Keys) -> None:
    key = keys.create(*PERMITTED)
    answer = post(served().url, key, input=[REFERENCE] * 10_000 + [USER])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "array_above_max_length")


async def test_what_is_known_of_a_key_is_bounded(redis: RedisServer) -> None:
    owners = StateOwners()
    await owners.add("a", [f"resp_{index}" for index in range(MOST_IDS + 1)])
    await owners.check("a", ["resp_1", f"resp_{MOST_IDS}"])
    with pytest.raises(Exception, match="was not found"):
        await owners.check("a", ["resp_0"])
    for index in range(MOST_KEYS):
        await owners.add(f"key {index}", ["resp_1"])
    with pytest.raises(Exception, match="was not found"):
        await owners.check("a", ["resp_1"])
    for index in range(MOST_IDS_IN_ALL // MOST_IDS + 1):
        await owners.add(f"large {index}", [f"resp_{number}" for number in range(MOST_IDS)])
    await owners.check("large 1", ["resp_0"])
    with pytest.raises(Exception, match="was not found"):
        await owners.check("large 0", ["resp_0"])
    shared = RedisStateOwners(redis.url)
    await shared.add("a", [str(index).encode() for index in range(MOST_OWNED + 10)])
    with redis.client() as client:
        assert client.zcard("slipstream:owned:{a}") == MOST_OWNED
        assert 0 < client.ttl("slipstream:owned:{a}") <= 30 * 86_400
    await shared.aclose()
