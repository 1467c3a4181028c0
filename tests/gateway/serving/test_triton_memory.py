"""What a real Triton keeps of the calls that it has answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from slipstream_tools.up.triton_server import TritonServer

from tests.support.polling import PATIENCE_S

ANSWERS, CLIENTS = 480, 6
KEPT_OF_A_CANCELLED_CALL_BYTES = 5_000  # by Triton 2.51, measured
ROUNDS = 3


async def test_triton_keeps_nothing_of_answers_that_came_to_their_end(
    gateway_url: str, triton_server: TritonServer
) -> None:
    async with httpx.AsyncClient(base_url=gateway_url, timeout=PATIENCE_S) as client:
        await _ask(client, ANSWERS // 4)  # what a server gets ready once
        for _ in range(ROUNDS):  # what is kept grows in every round, what an allocator takes by chance does not
            before = _own_bytes(triton_server.child.pid)
            await _ask(client, ANSWERS)
            grown = _own_bytes(triton_server.child.pid) - before
            if grown < ANSWERS * KEPT_OF_A_CANCELLED_CALL_BYTES / 3:
                break
    assert grown < ANSWERS * KEPT_OF_A_CANCELLED_CALL_BYTES / 3


async def _ask(client: httpx.AsyncClient, answers: int) -> None:
    """Streamed and whole ones in turns."""

    async def one_after_another(count: int) -> None:
        for number in range(count):
            body = {"model": "slipstream-embedded", "prompt": "one two", "max_tokens": 2, "stream": number % 2 == 0}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text

    await asyncio.gather(*(one_after_another(answers // CLIENTS) for _ in range(CLIENTS)))


def _own_bytes(pid: int) -> int:
    """Resident memory of the server's own process that is no file's. The engine is another process."""
    [line] = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon:"))
    return 1024 * int(line.split()[1])
