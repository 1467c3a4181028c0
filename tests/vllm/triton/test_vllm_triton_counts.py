"""Counts of drafts by HTTP and inside Triton: answers that a stop string ended have them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import pytest
from slipstream_core.types import Endpoint, GenerationRequest, Message
from slipstream_engine.embedded import demo
from slipstream_gateway.upstreams.base import Job, Usage
from slipstream_gateway.upstreams.engine_server import EngineUpstream
from slipstream_gateway.upstreams.http_transport import HttpTransport
from slipstream_tools.up.triton_server import TritonServer
from slipstream_tools.up.vllm_server import VllmServer

from tests.support.engines import engine_in_triton
from tests.support.polling import soon

LONGEST = 4
STOP = "Customer"
GREEDY: dict[str, Any] = {"messages": demo.CALL_SUMMARY, "temperature": 0.0, "max_tokens": 96}
STATISTICS_S = 60.0


class Way(NamedTuple):
    """A way to a vLLM server: the upstream, and what the server calls its model."""

    upstream: EngineUpstream
    model: str


def _in_triton(triton: TritonServer) -> Way:
    return Way(engine_in_triton(f"{triton.ports.host}:{triton.ports.grpc}"), "embedded")


@pytest.fixture(params=["http", "triton"])
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    if request.param == "http":
        http: VllmServer = request.getfixturevalue("vllm_server")
        found = Way(EngineUpstream(HttpTransport(http.url, connect_timeout_s=5.0)), "slipstream-embedded")
    else:
        found = _in_triton(request.getfixturevalue("vllm_triton"))
    yield found
    await found.upstream.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_a_stop_string_ended_is_counted(way: Way, stream: bool) -> None:
    whole = await _usage(way, stream=stream, stop=())
    assert whole.counted
    assert 0 < whole.accepted <= whole.drafted
    stopped = await _usage(way, stream=stream, stop=(STOP,))
    assert stopped.counted
    assert 0 < stopped.accepted <= stopped.drafted < whole.drafted
    assert 0 < stopped.output_tokens < whole.output_tokens
    assert stopped.steps + stopped.accepted >= stopped.output_tokens - 1
    plain = await _usage(way, stream=stream, stop=(STOP,), draft_length=0)
    assert plain.counted
    assert (plain.drafted, plain.accepted, plain.steps) == (0, 0, plain.output_tokens - 1)
    assert stopped.steps < plain.steps


async def test_several_answers_are_not_counted(way: Way) -> None:
    """vLLM counts the drafts of one sequence."""
    sampled = _request(stream=False, stop=(), n=2, temperature=1.0)  # vLLM refuses several greedy answers
    request = msgspec.structs.replace(sampled, n=2, temperature=1.0, features=frozenset({"n"}))
    job = Job(request=request, model=way.model, draft_length=LONGEST, request_id="r")
    usage = (await way.upstream.complete(job)).usage
    assert not usage.counted
    assert usage.output_tokens > 0


async def test_statistics_are_logged_and_reset_at_intervals(vllm_triton: TritonServer) -> None:
    """vLLM keeps those of each step until its application logs them."""
    log = vllm_triton.child.log_path

    def logged() -> int:
        return log.read_text(encoding="utf-8", errors="replace").count("SpecDecoding metrics")

    before, way = logged(), _in_triton(vllm_triton)
    await _usage(way, stream=False, stop=())
    await soon(lambda: logged() > before, "statistics in the log", within_s=STATISTICS_S)
    await way.upstream.aclose()


async def _usage(way: Way, *, stream: bool, stop: tuple[str, ...], draft_length: int = LONGEST) -> Usage:
    request = _request(stream=stream, stop=stop)
    job = Job(request=request, model=way.model, draft_length=draft_length, request_id="r")
    if not stream:
        return (await way.upstream.complete(job)).usage
    answer = await way.upstream.open(job)
    try:
        while await answer.next() is not None:
            pass
        return answer.usage
    finally:
        await answer.aclose()


def _request(*, stream: bool, stop: tuple[str, ...], **more: Any) -> GenerationRequest:
    """The same question for each way, as fields and as the body that they come from."""
    body = {**GREEDY, "model": "public", "stream": stream, **more}
    if stop:
        body["stop"] = list(stop)
    return GenerationRequest(
        endpoint=Endpoint.CHAT,
        model="public",
        messages=tuple(Message(**message) for message in demo.CALL_SUMMARY),
        temperature=0.0,
        max_tokens=GREEDY["max_tokens"],
        stop=stop,
        stream=stream,
        raw=json.dumps(body).encode(),
    )
