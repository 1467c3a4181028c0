"""The end of a Triton server with running answers, and of its model's process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import psutil
import pytest
from slipstream_tools.up.triton_server import TritonPorts, TritonServer

from tests.contract.engine_client import CHAT, COMPLETION, Engine
from tests.support.pipe_transport import PipeTransport
from tests.support.polling import PATIENCE_S
from tests.support.ports import lasting_ports
from tests.triton.conftest import ENDLESS, MODEL

HALTED = "halted: the server is shutting down"


@pytest.fixture
async def own(tmp_path: Path, start_triton: Callable[[Path, TritonPorts], TritonServer]) -> AsyncIterator[TritonServer]:
    grpc, http, metrics = lasting_ports(3)
    server = await asyncio.to_thread(start_triton, tmp_path, TritonPorts(grpc=grpc, http=http, metrics=metrics))
    yield server
    await asyncio.to_thread(server.stop)


@pytest.fixture
async def engine(own: TritonServer) -> AsyncIterator[Engine]:
    transport = PipeTransport(f"{own.ports.host}:{own.ports.grpc}", MODEL)
    async with httpx.AsyncClient(base_url="http://triton", transport=transport, timeout=PATIENCE_S) as http:
        yield await Engine.of(http)


async def test_answers_that_outlast_the_exit_timeout_end_halted(own: TritonServer, engine: Engine) -> None:
    parts = []

    async def stream() -> None:
        async with engine.stream(**ENDLESS) as events:
            async for event in events:
                parts.append(event)  # noqa: PERF401 - an error follows them

    # Seven rows: one alone fills its context before the limit on a fast machine.
    longer = [asyncio.create_task(each) for _ in range(3) for each in (stream(), engine.ask(**ENDLESS))]
    async with engine.stream(COMPLETION, prompt="a", max_tokens=30, ignore_eos=True) as events:
        await anext(events)
        own.child.terminate()
        short = [event async for event in events]
    assert short[-1]["choices"][0]["finish_reason"] == "length", "answers may end by themselves meanwhile"
    for task in longer:
        with pytest.raises(httpx.RemoteProtocolError, match=HALTED):
            await task
    assert parts
    assert {event["choices"][0]["finish_reason"] for event in parts} == {None}
    assert await asyncio.to_thread(own.child.wait, PATIENCE_S)


async def test_triton_ends_with_the_process_of_its_model(own: TritonServer, engine: Engine) -> None:
    [stub] = psutil.Process(own.child.pid).children()
    asked = asyncio.create_task(engine.ask(CHAT, ignore_eos=True, max_tokens=1200))
    await asyncio.sleep(0.2)
    stub.kill()
    await asyncio.wait([asked])
    assert asked.exception() is not None
    assert await asyncio.to_thread(own.child.wait, PATIENCE_S)
    assert own.child.exit_code == -signal.SIGKILL
