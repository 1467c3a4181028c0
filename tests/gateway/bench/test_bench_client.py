"""The bench's own client against servers that behave, and servers that do not."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

import pytest
from slipstream_core.errors import CommandError
from slipstream_tools.bench.client import Answer, BenchClient
from slipstream_tools.bench.plan import parse_mode
from slipstream_tools.bench.terminal import Progress, clock

from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import chat


def ask(url: str, *bodies: Mapping[str, Any], timeout_s: float = 10.0) -> list[Answer]:
    async def run() -> list[Answer]:
        client = BenchClient(url, api_key="secret", timeout_s=timeout_s)
        try:
            return [await client.run(body, {}) for body in bodies]
        finally:
            await client.close()

    return asyncio.run(run())


def prompt(script: str) -> dict[str, Any]:
    return {"model": "m", "prompt": script}


@pytest.mark.parametrize("how", ["", "crlf", "split=1", "split=7"])
def test_answers_are_read_however_they_are_cut(openai_server: Any, how: str) -> None:
    server = openai_server()
    [answer] = ask(server.url, chat(f"tokens=4 gap=0.1 {how}"))
    assert (answer.error, answer.text, answer.output_tokens, answer.prompt_tokens) == (None, "w0 w1 w2 w3 ", 4, 5)
    assert answer.ttft_s is not None
    assert answer.last_s is not None
    assert answer.e2e_s is not None
    assert 0 < answer.ttft_s < answer.last_s <= answer.e2e_s
    assert answer.last_s - answer.ttft_s > 0.1  # 0.3, less what a busy machine reads late
    assert server.headers[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("script", "error", "timeout_s"),
    [
        ("status=503", "scripted", 15.0),
        ("status=429", "scripted", 15.0),
        ("garbage", "the answer is not HTTP", 15.0),
        ("die=0", "the connection was closed without an answer", 15.0),
        ("die=2", "the stream ended early", 15.0),
        ("early-end", "the stream ended early", 15.0),
        ("slow=60", "no complete answer within 4 s", 4.0),  # within which the next request is answered
    ],
)
def test_broken_answers_are_errors_and_the_next_request_is_none(
    openai_server: Any, script: str, error: str, timeout_s: float
) -> None:
    broken, whole = ask(openai_server().url, chat(script), chat("tokens=2"), timeout_s=timeout_s)
    assert broken.error is not None
    assert error in broken.error
    assert (whole.error, whole.text) == (None, "w0 w1 ")


def test_a_kept_connection_that_the_server_closed_is_replaced(free_ports: Any) -> None:
    """The server leaves after a refusal, which keeps the connection; another one takes its place."""

    async def run() -> list[Answer]:
        [port] = free_ports(1)
        first = await asyncio.to_thread(OpenAiServer, port)
        client = BenchClient(first.url, api_key=None, timeout_s=10.0)
        answers = [await client.run(chat("status=418"), {})]
        await asyncio.to_thread(first.stop)
        second = await asyncio.to_thread(OpenAiServer, port)
        answers.append(await client.run(chat("tokens=2"), {}))
        await client.close()
        await asyncio.to_thread(second.stop)
        return answers

    refused, answered = asyncio.run(run())
    assert (refused.status, answered.error, answered.text) == (418, None, "w0 w1 ")


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "127.0.0.1:8080"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(CommandError, match="--url"):
        BenchClient(url, api_key=None, timeout_s=1.0)


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("plain", {"x-slipstream-mode": "plain", "x-slipstream-learn": "off"}),
        ("speculative", {"x-slipstream-mode": "speculative", "x-slipstream-learn": "off"}),
        (
            "speculative:04",
            {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "4", "x-slipstream-learn": "off"},
        ),
        ("routed", {}),
    ],
)
def test_only_routed_requests_may_teach(name: str, headers: dict[str, str]) -> None:
    assert parse_mode(name).headers(learn=True) == headers
    assert parse_mode(name).headers(learn=False)["x-slipstream-learn"] == "off"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        progress = Progress(total=40, stream=stream, label="ngram")
        for _ in range(40):
            progress.advance()
        progress.close()
    assert terminal.getvalue().startswith("\r[")
    assert "ngram: 40 of 40, 0:00 left" in terminal.getvalue()
    assert len(log.getvalue().splitlines()) == 10
    assert log.getvalue().splitlines()[-1] == "slipstream: ngram: 40 of 40, 0:00 left"
    assert [clock(seconds) for seconds in (3.4, 123, 3723)] == ["0:03", "2:03", "1:02:03"]
