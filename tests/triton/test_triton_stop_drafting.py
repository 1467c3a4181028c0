"""The control message in a real Triton: what runs or waits goes on plainly, and nobody can see it in the text."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from slipstream_engine.embedded import demo

SLOTS, WAITING = 8, 64
ANSWERED_S = 60.0
SUMMARY: dict[str, Any] = {"messages": demo.CALL_SUMMARY, "temperature": 0.0, "draft_tokens": 4, "stream": True}
# Goes on for ever under greedy decoding, with drafts that are all rejected.
ENDLESS: dict[str, Any] = {"text_input": "a", "temperature": 0.0, "max_tokens": 300, "draft_tokens": 2, "stream": True}
STEPS_ON_THEIR_WAY = 50  # of 300: a busy machine reads what has come late
RACES = 5  # one may be lost where the machine stands still for a moment: an answer takes two seconds


async def _stop_drafting(triton: Any, **inputs: Any) -> list[Any]:
    """The outputs of the answer to a control message, which is a single one."""
    outputs = None
    async with asyncio.timeout(ANSWERED_S):
        async for result, error in triton.open(**{"stop_drafting": True, **inputs}):
            assert error is None, error
            assert outputs is None, "a second answer"
            outputs = list(result.get_response().outputs)
            break
    assert outputs is not None
    return outputs


class _Reader:
    """Reads one stream to its end; `at_least` waits until it has so many tokens. `refused` is the error that it began
    with."""

    def __init__(self, triton: Any, inputs: dict[str, Any]) -> None:
        self.token_ids: list[int] = []
        self.drafted: list[tuple[int, int]] = []  # (output tokens, drafted) of each part
        self.refused = ""
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._read(triton.open(**inputs)))

    async def _read(self, stream: Any) -> None:
        async for result, error in stream:
            if error is not None and not self.drafted:
                self.refused = str(error.message())
                return
            assert error is None, error
            async with self._changed:
                self.token_ids += result.as_numpy("token_ids").tolist()
                self.drafted.append((len(self.token_ids), int(result.as_numpy("drafted")[0])))
                self._changed.notify_all()
            if result.as_numpy("finish_reason")[0]:
                return

    async def at_least(self, tokens: int) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: len(self.token_ids) >= tokens)

    async def end(self) -> None:
        await self._task
        assert not self.refused

    @staticmethod
    async def first_end(readers: list[_Reader]) -> _Reader:
        """The one of `readers` that ends first."""
        tasks = [reader._task for reader in readers]
        [ended, *_], _ = await asyncio.wait(tasks, timeout=ANSWERED_S, return_when=asyncio.FIRST_COMPLETED)
        return readers[tasks.index(ended)]


async def test_running_streams_go_on_plainly_with_the_tokens_of_an_undisturbed_run(triton: Any) -> None:
    undisturbed = [await triton.generate(**inputs) for inputs in (SUMMARY, ENDLESS)]
    for _ in range(RACES):
        if await _stops_midway(triton, undisturbed):
            return
    pytest.fail(f"in none of {RACES} runs did the drafts end in time")


async def _stops_midway(triton: Any, undisturbed: list[Any]) -> bool:
    """Stop the drafts of running streams, whose tokens must not show it; whether that was long before their end."""
    _, endless = readers = [_Reader(triton, inputs) for inputs in (SUMMARY, ENDLESS)]
    for reader in readers:
        await reader.at_least(12)
    assert await _stop_drafting(triton) == []
    drafted_by_then = [reader.drafted[-1][1] for reader in readers]
    for reader in readers:
        await reader.end()
    for reader, answer in zip(readers, undisturbed, strict=True):
        assert reader.token_ids == answer.token_ids
    drafted = [reader.drafted[-1][1] for reader in readers]
    assert drafted[1] > 0
    assert drafted[0] <= undisturbed[0].last.drafted
    tokens_when_it_stopped = next(tokens for tokens, count in endless.drafted if count == drafted[1])
    return (
        drafted[1] <= drafted_by_then[1] + STEPS_ON_THEIR_WAY * 2
        and drafted[1] < undisturbed[1].last.drafted / 2
        and tokens_when_it_stopped < len(endless.token_ids) / 2
    )


async def test_what_is_asked_for_afterwards_drafts_again(triton: Any) -> None:
    running = _Reader(triton, ENDLESS)
    await running.at_least(2)
    await _stop_drafting(triton)
    after = await triton.generate(**SUMMARY)
    assert after.last.drafted > 0
    await running.end()


async def test_an_idle_server_takes_it_and_goes_on(triton: Any) -> None:
    for _ in range(3):
        assert await _stop_drafting(triton) == []
    assert (await triton.generate(**SUMMARY)).last.drafted > 0


async def test_plain_http_reaches_it_too(triton_server: Any) -> None:
    url = f"http://{triton_server.ports.host}:{triton_server.ports.http}/v2/models/embedded/generate"
    async with httpx.AsyncClient(timeout=ANSWERED_S) as client:
        taken = await client.post(url, json={"stop_drafting": True})
        refused = await client.post(url, json={"stop_drafting": False})
    assert taken.status_code == 200
    assert refused.status_code == 400
    assert "stop_drafting: expected true, got false" in refused.json()["error"]


async def test_it_is_answered_while_the_queue_is_full_and_reaches_what_waits(triton: Any, fill_slots: Any) -> None:
    streams = await fill_slots()
    waiting = [_Reader(triton, ENDLESS | {"max_tokens": 4}) for _ in range(WAITING + 1)]
    one_too_many = await _Reader.first_end(waiting)
    assert one_too_many.refused.startswith("overloaded: ")
    waiting.remove(one_too_many)
    assert await _stop_drafting(triton) == []
    for stream in streams:
        stream.cancel()
    for reader in waiting:
        await reader.end()
    assert {reader.drafted[-1] for reader in waiting} == {(4, 0)}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"stop_drafting": False}, "stop_drafting: expected true, got false"),
        ({"stop_drafting": True, "text_input": "a"}, "stop_drafting is a control message and allows no other input"),
        ({"stop_drafting": True, "draft_tokens": 0}, "stop_drafting is a control message and allows no other input"),
        ({"stop_drafting": [True, True]}, "shape"),
    ],
)
async def test_malformed_control_message_is_refused(triton: Any, inputs: dict[str, Any], message: str) -> None:
    refused = await triton.generate(**inputs)
    assert refused.error is not None
    assert message in refused.error
    assert (await triton.generate(**SUMMARY)).error is None
