"""The path of a request: the files that it runs through, and what it leaves behind in memory."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, TracebackType
from typing import Any

import pytest
import slipstream_gateway
from slipstream_core.errors import UpstreamFailed, UpstreamUnavailable
from slipstream_core.settings import ConformanceSettings, Deadlines, GatewaySettings
from slipstream_gateway.api.generate import GenerateEndpoint
from slipstream_gateway.app.endpoints import generation
from slipstream_gateway.app.wiring import Services, build_services
from slipstream_gateway.fleet.fleet import ReplicaKey
from slipstream_gateway.upstreams.base import Completion, Drafting, Job, Piece, Stream, Usage

from tests.support.manifests import EMBEDDED, pair_yaml
from tests.support.polling import soon

MANIFEST = pair_yaml(
    '{kind: slipstream, endpoints: ["grpc://127.0.0.1:1", "grpc://127.0.0.1:2"]}',
    *EMBEDDED,
    policy=", allowClientMode: true, parityShare: 0",  # else one answer in 100 waits for its comparison
)
TOKENS = 4
REQUESTS = ("Call", "Job", "Attempt", "async_generator", "coroutine", "frame", "traceback")
ROOT = Path(slipstream_gateway.__file__).parent.parent


def event(position: int) -> Piece:
    """The token at `position` as an event; the last one ends the stream."""
    reason = "stop" if position + 1 == TOKENS else None
    choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": reason}
    data = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    return Piece(data + b"data: [DONE]\n\n" if reason else data, token_ids=(position,))


class FourTokens:
    """A stream of four tokens after `done` of them; it breaks off after `last`, where that is given."""

    def __init__(self, done: int, last: int | None) -> None:
        self.usage = Usage(prompt_tokens=3, output_tokens=done)
        self._last = last

    async def next(self) -> Piece | None:
        position = self.usage.output_tokens
        if position == self._last:
            raise UpstreamFailed("broke off")
        if position == TOKENS:
            return None
        self.usage.output_tokens += 1
        return event(position)

    async def aclose(self) -> None:
        pass


class Server:
    """A server without a wire. `plan` has how each next answer fails: `refuse`, `break`, or not at all."""

    gives_token_ids = answers_probes = True
    fingerprint = ""
    draft_standings = ()
    scores = False

    def __init__(self, plan: list[str]) -> None:
        self._plan = plan

    @property
    def drafting(self) -> Drafting:
        return Drafting(resumes="seeded")

    async def meet(self) -> None:
        pass

    async def complete(self, job: Job) -> Completion:
        return Completion(body=Piece(b'{"choices": []}'), usage=Usage(output_tokens=1))

    async def open(self, job: Job) -> Stream:
        fault = self._plan.pop() if self._plan else ""
        if fault == "refuse":
            raise UpstreamUnavailable("refused")
        done = job.committed.output_tokens if job.committed is not None else 0
        return FourTokens(done, 2 if fault == "break" else None)

    async def probe(self) -> None:
        pass

    async def is_same(self) -> bool:
        return True

    async def models(self) -> dict[str, int | None]:
        return {}

    async def stop_drafting(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


class Gateway:
    """The chat endpoint with every service of a worker behind it, called as an ASGI application."""

    def __init__(self, manifest: Path) -> None:
        self.plan: list[str] = []
        settings = GatewaySettings(
            manifest=manifest, conformance=ConformanceSettings(), deadlines=Deadlines(connect_s=2.0)
        )
        self.services: Services = build_services(settings, connect=self._connect)
        self._threads = ThreadPoolExecutor(1)
        self._chat: GenerateEndpoint = generation(self.services, settings, self._threads)["/v1/chat/completions"]

    def _connect(self, key: ReplicaKey, *_: object) -> Server:
        return Server(self.plan)

    async def ask(self, *, leave_after: int | None = None, **fields: Any) -> bytes:
        """The body of one answer. `leave_after`: the client is gone after so many messages."""
        content = json.dumps(
            {"model": "acme", "messages": [{"role": "user", "content": "Rephrase: it."}], "temperature": 0, **fields}
        ).encode()
        scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
        messages = [{"type": "http.request", "body": content, "more_body": False}]
        sent: list[bytes] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            sent.append(message.get("body", b""))
            if len(sent) == leave_after:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

        await self._chat(scope, receive, send)
        return b"".join(sent)

    async def aclose(self) -> None:
        await self.services.parity.aclose()
        await self.services.fleet.aclose()
        self.services.telemetry.close()
        self._threads.shutdown()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(MANIFEST)
    made = Gateway(manifest)
    async with made.services.source:
        yield made
        await made.aclose()


async def test_a_streamed_request_runs_through_few_files(gateway: Gateway) -> None:
    assert b"[DONE]" in await gateway.ask(stream=True)  # what is imported or built once
    entered: set[FrameType] = set()  # held, so that no two have one identity
    seen: set[str] = set()
    task = asyncio.current_task()

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and asyncio.current_task() is task:  # others follow the manifest's file meanwhile
            seen.add(frame.f_code.co_filename)
            if frame.f_code.co_name == "dispatch":
                entered.add(frame)

    sys.setprofile(trace)
    try:
        answer = await gateway.ask(stream=True)
    finally:
        sys.setprofile(None)
    assert answer.count(b"data: ") >= TOKENS
    found = sorted(str(Path(name).relative_to(ROOT)) for name in seen if Path(name).is_relative_to(ROOT))
    outside = [name for name in found if not name.startswith("slipstream_gateway/decide/")]
    assert len(outside) <= 34, "\n".join(outside)
    assert len(entered) == 1


def kept() -> Counter[str]:
    """The objects in memory that a request could leave behind, by type: ours, and what runs them."""
    running = (AsyncGeneratorType, CoroutineType, FrameType, TracebackType)
    return Counter(
        type(each).__name__
        for each in gc.get_objects()
        if isinstance(each, running) or str(type(each).__module__).startswith("slipstream_")
    )


def left_of(grown: Counter[str]) -> dict[str, int]:
    """What was left behind by requests. What runs beside them, as the reading of the manifest, comes and goes; a leak
    would be a thousand."""
    return {name: count for name, count in grown.items() if name in REQUESTS and count > 5}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_thousand_requests_leave_nothing_for_the_garbage_collector(gateway: Gateway, stream: bool) -> None:
    """Whole answers, failovers, resumptions and clients that leave: what they used is freed by reference counts."""

    async def ask(number: int) -> None:
        gateway.plan[:] = {1: ["refuse"], 2: ["break"], 3: ["break", "refuse"]}.get(number % 5, [])[::-1]
        await gateway.ask(stream=stream, leave_after=3 if number % 5 == 4 else None)

    for number in range(50):
        await ask(number)
    gc.collect()
    gc.disable()
    try:
        before = kept()
        for number in range(1001):
            await ask(number)
        # Tasks that were cancelled end a moment later.
        await soon(lambda: not left_of(kept() - before), "no object of a request", seen=lambda: kept() - before)
        grown = kept() - before
    finally:
        gc.enable()
    assert grown.total() <= 64, grown  # estimates grow with traffic, within their bounds
