"""Counts of drafts: answers that a stop string ended have them; unknown counts are left out instead of 0."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import pytest
from slipstream_core.types import Endpoint, GenerationRequest, Message
from slipstream_engine.embedded import demo
from slipstream_gateway.upstreams.base import Job, Usage
from slipstream_gateway.upstreams.triton_server import TritonUpstream
from slipstream_gateway.upstreams.vllm_server import VllmUpstream
from slipstream_tools.up.triton_server import TritonServer
from slipstream_tools.up.vllm_server import VllmServer

from tests.support.polling import soon

LONGEST = 4
STOP = "Customer"
UNKNOWN = (None, None, None, None)
GREEDY: dict[str, Any] = {"messages": demo.CALL_SUMMARY, "temperature": 0.0, "max_tokens": 96}
STATISTICS_S = 60.0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_a_stop_string_ended_is_counted(vllm_model: Any, stream: bool) -> None:
    request = {**GREEDY, "stop": [STOP], "stream": stream}
    drafted = (await vllm_model.generate(**request, draft_tokens=LONGEST)).last
    plain = (await vllm_model.generate(**request)).last
    assert (plain.drafted, plain.accepted, plain.steps) == (0, 0, plain.output_tokens - 1)
    assert drafted.finish_reason == "stop"
    assert 0 < drafted.accepted <= drafted.drafted
    assert drafted.steps + drafted.accepted >= drafted.output_tokens - 1
    assert drafted.steps < plain.steps


@pytest.mark.parametrize("stream", [False, True])
async def test_counts_are_left_out_where_a_stop_string_ended_a_resumed_answer(vllm_model: Any, stream: bool) -> None:
    """The engine's own text check ends it; vLLM tells counts with its last output."""
    resumed = (await vllm_model.generate(**GREEDY)).token_ids[:6]
    request = {**GREEDY, "stop": [STOP], "stream": stream, "resume_ids": resumed}
    drafted = (await vllm_model.generate(**request, draft_tokens=LONGEST)).last
    assert drafted.finish_reason == "stop"
    assert (drafted.drafted, drafted.accepted, drafted.steps, drafted.rejected_at) == UNKNOWN
    plain = (await vllm_model.generate(**request)).last
    assert (plain.drafted, plain.accepted, plain.steps) == (0, 0, plain.output_tokens - len(resumed) - 1)


class Way(NamedTuple):
    """A way to a vLLM server: the upstream, what the server calls its model, and features that need this way."""

    upstream: Any
    model: str
    features: frozenset[str]


@pytest.fixture(params=["tensors", "relayed", "http"])
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    if request.param == "http":
        http: VllmServer = request.getfixturevalue("vllm_server")
        found = Way(VllmUpstream(http.url, connect_timeout_s=5.0), "slipstream-embedded", frozenset())
    else:
        triton: TritonServer = request.getfixturevalue("vllm_triton")
        address = f"{triton.ports.host}:{triton.ports.grpc}"
        features = frozenset({"logprobs"} if request.param == "relayed" else ())
        found = Way(TritonUpstream(address, model="embedded", connect_timeout_s=5.0), "embedded", features)
    yield found
    await found.upstream.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_gateway_takes_the_counts_of_an_answer_that_a_stop_string_ended(way: Way, stream: bool) -> None:
    whole = await _usage(way, stream=stream, stop=())
    assert whole.counted
    assert 0 < whole.accepted <= whole.drafted
    stopped = await _usage(way, stream=stream, stop=(STOP,))
    assert stopped.counted
    assert 0 < stopped.accepted <= stopped.drafted < whole.drafted
    assert 0 < stopped.output_tokens < whole.output_tokens
    assert (await _usage(way, stream=stream, stop=(STOP,), draft_length=0)).counted


async def test_several_answers_are_counted_where_each_is(vllm_triton: TritonServer) -> None:
    address = f"{vllm_triton.ports.host}:{vllm_triton.ports.grpc}"
    upstream = TritonUpstream(address, model="embedded", connect_timeout_s=5.0)
    way = Way(upstream, "embedded", frozenset({"n"}))
    request = msgspec.structs.replace(_request(way, False, ()), n=2)
    job = Job(request=request, model=way.model, draft_length=LONGEST, request_id="r")
    assert (await upstream.complete(job)).usage.counted
    await upstream.aclose()


async def test_statistics_are_logged_and_reset_at_intervals(vllm_model: Any, vllm_triton: TritonServer) -> None:
    """vLLM keeps those of each step until its application logs them."""
    log = vllm_triton.child.log_path

    def logged() -> int:
        return log.read_text(encoding="utf-8", errors="replace").count("SpecDecoding metrics")

    before = logged()
    await vllm_model.generate(**GREEDY, draft_tokens=LONGEST)
    await soon(lambda: logged() > before, "statistics in the log", within_s=STATISTICS_S)


async def _usage(way: Way, *, stream: bool, stop: tuple[str, ...], draft_length: int = LONGEST) -> Usage:
    job = Job(request=_request(way, stream, stop), model=way.model, draft_length=draft_length, request_id="r")
    if not stream:
        usage: Usage = (await way.upstream.complete(job)).usage
        return usage
    answer = await way.upstream.open(job)
    try:
        while await answer.next() is not None:
            pass
        whole: Usage = answer.usage
        return whole
    finally:
        await answer.aclose()


def _request(way: Way, stream: bool, stop: tuple[str, ...]) -> GenerationRequest:
    """The same question for each way, as fields and as the body that they come from."""
    body = {**GREEDY, "model": "public", "stream": stream, **dict.fromkeys(way.features, True)}
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
        features=way.features,
        raw=json.dumps(body).encode(),
    )
