"""The end of drafting reaches all earlier requests in a real Triton: those that run, that wait, or that arrive."""

from __future__ import annotations

import asyncio
import json

from tests.contract.engine_client import CHAT, COMPLETION, Engine, Refused
from tests.support.pipe_transport import PipeTransport, piped
from tests.triton.conftest import SLOTS, WAITING, Fill

LENGTH = 4
STOP = piped("POST", "/slipstream/stop_drafting")


async def test_it_is_answered_while_the_queue_is_full_and_reaches_what_waits(triton: Engine, fill_slots: Fill) -> None:
    running = await fill_slots()
    request = {"length": LENGTH, "prompt": "a", "max_tokens": 4, "ignore_eos": True}
    waiting = [asyncio.create_task(triton.ask(COMPLETION, **request)) for _ in range(WAITING + 1)]
    [one_too_many, *_], _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(one_too_many.exception(), Refused)
    waiting.remove(one_too_many)
    assert await triton.stop_drafting() == SLOTS + WAITING
    await running.aclose()
    answers = await asyncio.gather(*waiting)
    assert {(len(answer.ids), answer.counts["num_draft_tokens"]) for answer in answers} == {(4, 0)}


async def test_it_reaches_a_request_that_is_still_tokenized(triton: Engine, pipe: PipeTransport) -> None:
    """Triton passes the requests of one stream to the model in their order: the stop overtakes the tokenization."""
    body = triton.body(CHAT, length=LENGTH, metadata={"note": "x" * 200_000})  # large bodies are read in a thread
    data = json.dumps(body).encode()

    async def drafted(*others: bytes) -> int:
        pieces = b"".join([piece async for piece in pipe.send([piped("POST", CHAT, data), *others])])
        answers = [json.loads(line) for line in pieces.replace(b"}{", b"}\n{").splitlines()]
        [metrics] = [answer["metrics"] for answer in answers if "metrics" in answer]
        return int(metrics["speculative_decoding"]["num_draft_tokens"])

    assert await drafted() > 0
    assert await drafted(STOP) == 0
    assert await drafted() > 0


async def test_an_idle_server_takes_it_and_goes_on(triton: Engine) -> None:
    for _ in range(3):
        assert await triton.stop_drafting() == 0
    assert (await triton.ask(length=LENGTH)).counts["num_draft_tokens"] > 0
