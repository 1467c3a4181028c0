"""The file of classes on a real server, without the gateway: lengths, rules, counts, changes under load."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from slipstream_core.errors import CommandError
from slipstream_tools.up.vllm_server import VllmServer

from tests.support.polling import soon
from tests.vllm.plugin.client import Answer, Refused, Server, drafting, summaries, together

pytestmark = pytest.mark.timeout(900)
CLIENTS = 16
LENGTHS = (0, 4, 1)  # one after the other, while clients send
BROKEN = 40
VARIABLE = "SLIPSTREAM_VLLM_CLASSES"
FILE: dict[str, Any] = {
    "classes": {
        "long": {"length": 3},
        "short": {"length": 0},
        "form": {"length": 1},
        "tool_call": {"length": 2},
        "text": {"length": 2},
        "crowded": {"length": 4, "max_running": 0},
        "never_sent": {"length": 1},
    },
    "rules": [
        {"class": "tool_call", "tools": True},
        {"class": "form", "response_format": True},
        {"class": "text", "endpoint": "completions"},
        {"class": "short", "max_tokens": [None, 8]},
        {"class": "long", "max_tokens": [200, None], "model": "slipstream-embedded"},
    ],
}
LONGER = {"max_tokens": 600, "ignore_eos": True}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("classes") / "classes.yaml"
    file.write_text(json.dumps(FILE))
    return file


@pytest.fixture(scope="module")
def classes_server(start_vllm: Callable[..., VllmServer], path: Path) -> Iterator[VllmServer]:
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    server = start_vllm(extra=tools, env={VARIABLE: str(path)})
    yield server
    server.stop()


@pytest.fixture
def server(session: aiohttp.ClientSession, classes_server: VllmServer, path: Path) -> Iterator[Server]:
    yield Server(session, classes_server.url)
    write(path, json.dumps(FILE))


def write(path: Path, text: str) -> None:
    """Replace the file at once, as a ConfigMap is."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


async def by_class(server: Server) -> dict[str, dict[str, Any]]:
    answer: dict[str, dict[str, Any]] = (await server.call("GET", "/slipstream/classes"))["classes"]
    return answer


async def has_length(server: Server, length: int) -> bool:
    return bool((await by_class(server))["long"]["length"] == length)


def moved(before: dict[str, Any], after: dict[str, Any], label: str, *names: str) -> tuple[int, ...]:
    return tuple(after[label][name] - before.get(label, {}).get(name, 0) for name in names)


async def test_counts_by_class_equal_the_requests_and_their_answers(server: Server) -> None:
    bodies = summaries(24)
    labels = [(None, "long", "crowded", "other_class")[at % 4] for at in range(len(bodies))]
    before, vllm_before = await by_class(server), await server.counters()
    answers: list[Answer] = await together(
        *(server.chat(body, label=label, max_tokens=60) for body, label in zip(bodies, labels, strict=True))
    )
    after, vllm_after = await by_class(server), await server.counters()

    for label in set(labels):
        own = [answer for answer, sent in zip(answers, labels, strict=True) if sent == label]
        expected = (
            len(own),
            sum(len(answer.token_ids) for answer in own),
            sum(answer.drafted for answer in own),
            sum(answer.accepted for answer in own),
        )
        assert moved(before, after, label or "unlabelled", "requests", "tokens", "drafted", "accepted") == expected
    for name, counter in (("drafted", "draft_tokens"), ("accepted", "accepted_tokens")):
        total = sum(moved(before, after, label, name)[0] for label in after)
        assert total == vllm_after[counter] - vllm_before[counter] > 0
    assert sum(entry["engine_time_share"] for entry in after.values()) == pytest.approx(1.0)
    long = after["long"]
    assert long["acceptance"] == long["accepted"] / long["drafted"]
    assert 1.0 < long["tokens_per_step"] <= 4.0


async def test_a_class_gets_its_length_and_a_request_with_its_own_length_keeps_it(server: Server) -> None:
    [body] = summaries(1)
    longest = {None: 4, "long": 3, "short": 0, "crowded": 0}
    for label, length in longest.items():
        answer = await server.chat(body, label=label, max_tokens=60)
        assert answer.drafted <= length * answer.drafts
        assert (answer.drafted > max(length - 1, 0) * answer.drafts) == (length > 0)
    found = await by_class(server)
    assert {label: (found[label]["length"], found[label]["origin"]) for label in ("long", "short", "unlabelled")} == {
        "long": (3, "file"),
        "short": (0, "file"),
        "unlabelled": (4, "server"),
    }
    assert found["never_sent"] == {
        "requests": 0,
        "tokens": 0,
        "drafted": 0,
        "accepted": 0,
        "acceptance": None,
        "tokens_per_step": None,
        "engine_seconds": 0.0,
        "engine_time_share": 0.0,
        "length": 1,
        "origin": "file",
    }

    own = await server.chat(body, 1, label="short")
    assert own.drafted == own.drafts > 0
    assert [(await by_class(server))["short"][name] for name in ("length", "origin")] == [1, "request"]
    try:
        await server.set_limit(2)
        limited = await by_class(server)
        assert {label: (limited[label]["length"], limited[label]["origin"]) for label in ("long", "short")} == {
            "long": (2, "limit"),
            "short": (1, "request"),
        }
    finally:
        await server.set_limit(None)


async def test_a_class_above_its_load_does_not_draft(server: Server) -> None:
    [body] = summaries(1)
    running = asyncio.create_task(server.chat(body, label="crowded", max_tokens=400, ignore_eos=True))

    async def is_at_its_threshold() -> bool:
        return (await by_class(server))["crowded"]["origin"] == "threshold"

    await soon(is_at_its_threshold, "the class is at its threshold")
    await running


@pytest.mark.parametrize(
    ("route", "body", "label"),
    [
        ("chat/completions", {"max_tokens": 8}, "short"),
        ("chat/completions", {"max_completion_tokens": 8}, "short"),
        ("chat/completions", {"max_tokens": 200}, "long"),
        ("chat/completions", {"max_tokens": 20}, "unlabelled"),
        ("chat/completions", {"max_tokens": 200, "tools": TOOLS}, "tool_call"),
        ("chat/completions", {"max_tokens": 20, "response_format": {"type": "json_object"}}, "form"),
        ("chat/completions", {"max_tokens": 20, "response_format": {"type": "text"}}, "unlabelled"),
        ("chat/completions", {"max_tokens": 8, "vllm_xargs": {"slipstream_class": "long"}}, "long"),
        ("chat/completions", {"max_tokens": 8, "stream": True}, "short"),
        ("completions", {"max_tokens": 8}, "text"),
        ("responses", {"max_output_tokens": 8}, "short"),
        ("messages", {"max_tokens": 8}, "short"),
    ],
)
async def test_rules_give_requests_a_class(
    server: Server,
    session: aiohttp.ClientSession,
    classes_server: VllmServer,
    route: str,
    body: dict[str, Any],
    label: str,
) -> None:
    question = {"completions": {"prompt": "hello"}, "responses": {"input": "hello"}}
    messages = {"messages": [{"role": "user", "content": "hello"}]}
    before = await by_class(server)
    whole = {"model": "slipstream-embedded", **question.get(route, messages), **body}
    async with session.post(f"{classes_server.url}/v1/{route}", json=whole) as response:
        await response.read()
        assert response.status == 200
    after = await by_class(server)
    counted = Counter({name: moved(before, after, name, "requests")[0] for name in after})
    assert +counted == {label: 1}


async def test_a_bad_class_is_refused_before_rules(server: Server) -> None:
    [body] = summaries(1)
    with pytest.raises(Refused, match=r"vllm_xargs\.slipstream_class is 'A b'"):
        await server.chat(body, label="A b")


async def test_a_change_under_load_takes_effect_without_an_error(server: Server, path: Path) -> None:
    """Broken versions in between change nothing, and are named in `GET /slipstream`."""
    bodies = summaries(CLIENTS)
    done = asyncio.Event()

    async def client(body: dict[str, Any]) -> int:
        sent = 0
        while not done.is_set():
            answer = await server.chat(body, label="long", max_tokens=32)
            assert answer.token_ids
            sent += 1
        return sent

    async def is_named(broken: int) -> bool:
        found = (await server.call("GET", "/slipstream"))["classes"]
        assert found["file"] == str(path)
        return (found["problem"] or "").startswith(f"classes.long.length is {broken}; an integer from 0 to 4")

    before = await by_class(server)
    clients = asyncio.gather(*(client(body) for body in bodies))
    try:
        for length in LENGTHS:
            write(path, f"classes: {{long: {{length: {length}}}}}")
            await soon(lambda length=length: has_length(server, length), f"length {length} in use")
            write(path, f"classes: {{long: {{length: {BROKEN + length}}}}}")
            await soon(lambda length=length: is_named(BROKEN + length), "the broken version named")
            assert await has_length(server, length)
            answer = await server.chat(bodies[0], label="long", max_tokens=32)
            assert answer.drafted <= length * answer.drafts
            assert (answer.drafted > max(length - 1, 0) * answer.drafts) == (length > 0)
    finally:
        done.set()
        sent = sum(await clients)
    assert moved(before, await by_class(server), "long", "requests") == (sent + len(LENGTHS),)


def test_each_broken_version_was_logged_once(classes_server: VllmServer) -> None:
    lines = [line for line in classes_server.child.log_tail(lines=10_000).splitlines() if "is broken" in line]
    assert len(lines) == len(LENGTHS)
    for line, length in zip(lines, LENGTHS, strict=True):
        assert f"classes.long.length is {BROKEN + length};" in line


@pytest.mark.slow  # long answers; the test above has a change under load
async def test_a_change_applies_to_running_requests(server: Server, path: Path) -> None:
    [body] = summaries(1)
    whole = await server.chat(body, 3, **LONGER)

    async def stopped_drafting() -> bool:
        write(path, json.dumps(FILE))
        await soon(lambda: has_length(server, 3), "length 3 in use")
        running = asyncio.create_task(server.chat(body, label="long", **LONGER))
        await drafting(server)
        write(path, "classes: {long: {length: 0}}")
        changed = await running
        assert changed.token_ids == whole.token_ids
        return 0 < changed.drafts < whole.drafts

    await soon(stopped_drafting, "an answer that was running when the file was read again")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("classes: {chat: {length: 5}}", "classes.chat.length is 5; an integer from 0 to 4"),
        (None, "the file cannot be read: No such file or directory."),
    ],
)
def test_a_broken_file_refuses_to_start(
    start_vllm: Callable[..., VllmServer], tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "classes.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CommandError, match=f"{VARIABLE}={path}: {problem}"):
        start_vllm(env={VARIABLE: str(path)})
