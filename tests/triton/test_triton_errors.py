"""Bad and excessive requests to the real Triton: an error each, and the model goes on serving."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.contract.engine_client import CHAT, COMPLETION, Engine, Refused
from tests.support.pipe_transport import PipeTransport, piped
from tests.triton.conftest import WAITING, Fill

SHORT: dict[str, Any] = {"max_tokens": 2}


@pytest.mark.parametrize("data", [b"", b"{}\n", b"\xff\n", b'{"method": 1, "path": "/"}\n'])
async def test_a_tensor_without_a_request_is_refused(pipe: PipeTransport, triton: Engine, data: bytes) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="invalid_request: request does not begin with a line"):
        await anext(pipe.send([data]))
    assert (await triton.ask(**SHORT)).ids


async def test_another_tensor_is_refused_by_triton_itself(triton_endpoint: str) -> None:
    transport = PipeTransport(triton_endpoint, "another")
    with pytest.raises(httpx.RemoteProtocolError, match="unknown model: 'another'"):
        await anext(transport.send([piped("GET", "/health")]))
    await transport.aclose()


async def test_a_word_of_a_megabyte_does_not_hold_up_others(triton: Engine) -> None:
    huge = asyncio.create_task(triton.ask(COMPLETION, prompt="x" * 1_000_000))
    assert (await triton.ask(CHAT, **SHORT)).ids
    assert not huge.done()
    with pytest.raises(Refused, match="context"):
        await huge


async def test_requests_beyond_the_waiting_room_are_refused_and_the_others_served(
    triton: Engine, fill_slots: Fill
) -> None:
    running = await fill_slots()
    tasks = [asyncio.create_task(triton.ask(**SHORT)) for _ in range(WAITING + 10)]
    refused, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert waiting
    await running.aclose()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert 10 >= len(errors) >= len(refused) > 0
    assert {error.status for error in errors if isinstance(error, Refused)} == {429}
    assert (await triton.ask(**SHORT)).ids
