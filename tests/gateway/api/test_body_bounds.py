"""Bodies of very many values are refused before they are decoded, and large ones are parsed beside the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slipstream_core.errors import InvalidRequest
from slipstream_core.types import GenerationRequest
from slipstream_gateway.api.body import MAX_ELEMENTS, MAX_FIELDS, MAX_PARTS, Values, check_values, count_values
from slipstream_gateway.api.parse import parse_completion_request
from slipstream_gateway.api.request import NO_OVERRIDES, ON_LOOP_BYTES, BodyParser, RequestOverrides
from slipstream_gateway.api.turns import Turns

from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import manifest_text
from tests.support.polling import PATIENCE_S, soon

MANY = MAX_PARTS + 1
FIELDS = {f"a{index}": 1 for index in range(MANY)}
MESSAGE = {"role": "user", "content": "a"}
PART = {"type": "text", "text": "a"}
TOO_MANY: dict[str, tuple[str, dict[str, Any]]] = {
    "fields": ("chat/completions", FIELDS),
    "fields that end with a backslash": ("chat/completions", {f"a{index}\\": 1 for index in range(MANY)}),
    "fields of a message": ("chat/completions", {"messages": [{**MESSAGE, **FIELDS}]}),
    "messages": ("chat/completions", {"messages": [MESSAGE] * MANY}),
    "parts": ("chat/completions", {"messages": [{**MESSAGE, "content": [PART] * MANY}]}),
    "kinds of parts": ("chat/completions", {"messages": [{**MESSAGE, "content": [{"type": key} for key in FIELDS]}]}),
    "stream options": ("chat/completions", {"stream": True, "stream_options": FIELDS}),
    "empty tools": ("chat/completions", {"tools": [{}] * MANY}),
    "empty lists": ("completions", {"prompt": [[]] * MANY}),
    "prompts": ("completions", {"prompt": ["x"] * MANY}),
    "items": ("responses", {"input": [MESSAGE] * MANY}),
    "fields of a text": ("responses", {"text": FIELDS}),
    "what to include": ("responses", {"include": list(FIELDS)}),
    "fields, explained": ("route", FIELDS),
}
TEXTS = st.text(st.sampled_from('"\\,:{}[]ä\n\x00a'), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def values_of(value: object) -> Values:
    """The same by walking the decoded value."""
    if isinstance(value, str):
        return Values(1, 0)
    if not isinstance(value, list | dict):
        return Values(0, 0)
    inner = [*value.values(), *value] if isinstance(value, dict) else value
    found = [values_of(item) for item in inner]
    commas = max(len(value) - 1, 0) + sum(item.commas for item in found)
    return Values(1 + sum(item.parts for item in found), commas)


@given(value=JSON, escaped=st.booleans(), gap=st.sampled_from(("", " ", "\n")))
@example(value={"a\\": '\\"', "b": ["\\\\", '\\\\"']}, escaped=True, gap="")
def test_values_are_counted_as_they_are(value: Any, escaped: bool, gap: str) -> None:
    raw = json.dumps(value, ensure_ascii=escaped, separators=(f"{gap},{gap}", f"{gap}:{gap}")).encode()
    assert count_values(raw) == values_of(value)


@pytest.fixture(scope="module")
def http(run_gateway: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    upstream = OpenAiServer(scripted=False)
    path = tmp_path_factory.mktemp("bounds") / "pair.yaml"
    with (
        run_gateway(path, manifest_text([upstream.url])) as running,
        httpx.Client(base_url=f"{running.url}/v1/", timeout=60) as client,
    ):
        yield client
    upstream.stop()


def body(**more: Any) -> dict[str, Any]:
    return {"model": "acme", "messages": [MESSAGE], "prompt": "x", "input": "x", "max_tokens": 2, **more}


@pytest.mark.parametrize("what", TOO_MANY)
def test_more_values_than_a_request_may_have_are_refused(http: httpx.Client, what: str) -> None:
    path, fields = TOO_MANY[what]
    answer = http.post(path, json=body(**fields))
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert f"at most {MAX_PARTS} are allowed" in message
    assert "strings, objects and lists" in message


def test_fields_of_the_body_and_numbers_have_bounds_of_their_own(http: httpx.Client) -> None:
    fields = {f"a{index}": None for index in range(MAX_FIELDS)}
    answer = http.post("chat/completions", json=body(**fields))
    assert answer.status_code == 400
    assert f"has {MAX_FIELDS + len(body())} fields; at most {MAX_FIELDS}" in answer.json()["error"]["message"]
    tokens = {"model": "acme", "prompt": [1] * (MAX_ELEMENTS + 1)}
    answer = http.post("completions", json=tokens)
    assert answer.status_code == 400
    assert f"at most {MAX_ELEMENTS} are allowed" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"messages": [{**MESSAGE, "content": '12:34:56, [x] {y} "quoted" \\n\n' * 90_000}]}),
        ("chat/completions", {"messages": [{**MESSAGE, "content": "größe: 12, {}, []" * 80_000}]}),
        ("chat/completions", {"messages": [MESSAGE] * (MAX_PARTS // 6)}),
        ("completions", {"prompt": list(range(130_000))}),
        ("responses", {"input": '{"a": ["b"]}, ' * 200_000}),
    ],
    ids=["a long log", "a long text", "a long conversation", "token ids", "JSON as text"],
)
def test_long_requests_of_few_values_are_answered(http: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    assert http.post(path, json=body(**fields)).status_code == 200


def _padded(size_bytes: int) -> bytes:
    raw = b'{"model": "acme", "prompt": ""}'
    return raw[:-2] + b"a" * (size_bytes - len(raw)) + raw[-2:]


async def test_the_event_loop_goes_on_while_a_large_body_is_parsed() -> None:
    has_gone_on, threads = threading.Event(), []

    def parse(raw: bytes, overrides: RequestOverrides = NO_OVERRIDES) -> GenerationRequest:
        threads.append(threading.current_thread())
        assert has_gone_on.wait(PATIENCE_S)
        return parse_completion_request(raw, overrides)

    with ThreadPoolExecutor(1) as executor:
        parser = BodyParser(parse, Turns(executor))
        running = asyncio.ensure_future(parser(_padded(ON_LOOP_BYTES + 1), NO_OVERRIDES))
        await soon(lambda: threads, "the parser's thread")
        asyncio.get_running_loop().call_soon(has_gone_on.set)
        assert (await running).model == "acme"
        await parser(_padded(ON_LOOP_BYTES), NO_OVERRIDES)
    assert threads[0] is not threading.current_thread()
    assert threads[1] is threading.current_thread()


async def test_keys_take_turns_with_their_large_bodies() -> None:
    go_on, order = threading.Event(), []

    def parse(name: str) -> str:
        order.append(name)
        assert go_on.wait(PATIENCE_S)
        return name

    with ThreadPoolExecutor(1) as executor:
        turns = Turns(executor)
        names = ["flood 0", "flood 1", "flood 2", "flood 3", "quiet 0"]
        running = []
        for name in names:
            running.append(asyncio.ensure_future(turns.run(name.split()[0], parse, name)))
            await asyncio.sleep(0)
        await soon(lambda: order == ["flood 0"], "the first body")
        running[2].cancel()
        go_on.set()
        results = await asyncio.gather(*running, return_exceptions=True)
        assert await turns.run("flood", parse, "later") == "later"
    assert order == ["flood 0", "flood 1", "quiet 0", "flood 3", "later"]
    assert [result for result in results if isinstance(result, str)] == ["flood 0", "flood 1", "flood 3", "quiet 0"]


@pytest.mark.parametrize("at", range(6))
async def test_no_turn_is_lost_whenever_a_request_is_cancelled(at: int) -> None:
    with ThreadPoolExecutor(1) as executor:
        turns = Turns(executor)
        running = [asyncio.ensure_future(turns.run(key, str.upper, key)) for key in "abc"]
        for _ in range(at):
            await asyncio.sleep(0)
        running[1].cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert await turns.run("d", str.upper, "d") == "D"


def test_endpoints_parse_large_bodies_in_a_thread(http: httpx.Client) -> None:
    """The gateway runs in this process."""
    for path in ("chat/completions", "completions", "responses", "route"):
        assert http.post(path, content=_padded(ON_LOOP_BYTES + 1), headers={"content-type": "application/json"})
    assert any(thread.name.startswith("parse") for thread in threading.enumerate())


@pytest.mark.parametrize(("value", "limit"), [(b"1", MAX_ELEMENTS), (b"[]", MAX_PARTS - 1), (b'""', MAX_PARTS - 1)])
def test_limits_of_values_are_exact(value: bytes, limit: int) -> None:
    """The list itself is one of the parts."""
    check_values(b"[%b]" % b",".join([value] * limit))
    with pytest.raises(InvalidRequest, match="are allowed"):
        check_values(b"[%b]" % b",".join([value] * (limit + 1)))
