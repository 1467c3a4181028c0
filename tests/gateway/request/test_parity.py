"""Parity over real servers: what is compared, what is told of a difference, and that it takes nothing from anybody."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from slipstream_core.types import Arm, Reason
from slipstream_gateway.request.parity.comparison import MAX_ANSWER_BYTES
from slipstream_gateway.request.parity.scheduler import MAX_ATTEMPTS
from slipstream_gateway.upstreams.base import Wire

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S
from tests.support.ports import dead_url

Make = Callable[..., Any]
Said = Callable[[], list[str]]
ALL = ", parityShare: 1"


@pytest.fixture
def pair(bench: Make, openai_server: Make) -> Callable[..., tuple[Any, Any, Any]]:
    """A bench with its plain and its speculative server: `pair(policy=..., max_queued=...)`."""

    def make(*, policy: str = ALL, **options: Any) -> tuple[Any, Any, Any]:
        plain, speculative = openai_server(), openai_server()
        return bench(manifest_text([plain.url], [speculative.url], policy=policy), **options), plain, speculative

    return make


async def _short_stream(bench: Any) -> Any:
    """Stands for the speculative answer to a request whose plain answer takes long."""
    return await bench.served.speculative.replicas[0].upstream.open(bench.job(chat("tokens=2", stream=True)))


@pytest.mark.parametrize("stream", [False, True])
async def test_equal_answers_are_checked_with_the_same_request_and_nothing_is_said(
    pair: Make, stream: bool, said: Said
) -> None:
    bench, plain, speculative = pair()
    await bench.ask(chat("tokens=7", stream=stream, max_tokens=50, stop=["x"]))
    await bench.counted({"checked": 1})
    assert plain.requests == speculative.requests
    assert plain.headers[0]["authorization"] == "Bearer client"
    assert "traceparent" not in plain.headers[0]
    assert said() == []
    assert bench.plain.outstanding == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_difference_is_told_by_index_and_hashes_without_a_word_of_the_answer(
    pair: Make, stream: bool, said: Said
) -> None:
    bench, plain, _ = pair()
    plain.odd_token = 3
    await bench.ask(chat("tokens=6", stream=stream))
    await bench.counted({"checked": 1, "mismatched": 1})
    words = [f"w{index} " if stream else "word " for index in range(6)]
    texts = ["".join(words), "".join(["odd " if index == 3 else word for index, word in enumerate(words)])]
    [line] = said()
    at = len("".join(words[:3]))
    assert f"first_difference=character {at} " in line
    assert line.startswith("WARNING parity mismatch: pair=pair class=code/long request='r-1' draft_length=4 ")
    for text in texts:
        assert f"sha256={hashlib.sha256(text.encode()).hexdigest()} length={len(text)}" in line
    assert "margin=unknown" in line
    assert "odd" not in line
    assert "tokens=6" not in line
    assert "Bearer" not in line


async def test_texts_are_logged_on_one_line_where_the_policy_allows_it(pair: Make, said: Said) -> None:
    bench, plain, _ = pair(policy=ALL + ", parityTexts: true")
    plain.odd_token = 1
    await bench.ask(chat("tokens=3", stream=True))
    await bench.counted({"checked": 1, "mismatched": 1})
    [line] = said()
    assert "speculative_text='w0 w1 w2 '" in line
    assert "plain_text='w0 odd w2 '" in line
    assert "\n" not in line


@pytest.mark.parametrize(("reason", "shown"), [("length", "length"), ("text of an answer", "other")])
async def test_another_reason_to_stop_is_a_difference_at_the_end_and_is_quoted_if_it_is_known(
    pair: Make, said: Said, reason: str, shown: str
) -> None:
    bench, plain, _ = pair()
    plain.finish_reason = reason
    await bench.ask(chat("tokens=2", stream=True))
    await bench.counted({"checked": 1, "mismatched": 1})
    [line] = said()
    assert "first_difference=character 6 " in line
    assert "finish_reason=stop" in line
    assert f"finish_reason={shown}" in line
    assert "text of an answer" not in line


async def test_a_shorter_plain_answer_differs_where_it_ends(pair: Make, said: Said) -> None:
    """The plain server plays another script: an answer kept from before stands for the speculative one."""
    bench, _, _ = pair()
    [longer] = await bench.ask(chat("tokens=5"), draw=1.0)
    job = bench.job(chat("tokens=2"))
    completion = await bench.plain.upstream.complete(bench.job(chat("tokens=5")))
    assert completion.pieces == (longer,)
    bench.watch(completion, job)
    await bench.counted({"checked": 1, "mismatched": 1})
    assert f"first_difference=character {len('word ' * 2)} " in said()[0]


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, {"draw": 0.5}),
        ({"temperature": 0.1}, {}),
        ({"n": 2}, {}),
        ({}, {"arm": Arm.PLAIN}),
        ({}, {"arm": Arm.CONTROL, "reason": Reason.HOLD_BACK}),
        ({}, {"reason": Reason.UNSUPPORTED_PARAMETER}),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, {}),
    ],
)
async def test_what_is_not_comparable_or_not_drawn_is_passed_on_untouched(
    bench: Make, openai_server: Make, body: dict[str, Any], options: dict[str, Any]
) -> None:
    server = openai_server()
    text = manifest_text([server.url], [server.url], policy=", parityShare: 0.5")
    made = bench(text.replace("plain: {", "plain: {unsupported: [tools], "))
    job = made.job(chat("tokens=1", **body))
    answer = await made.plain.upstream.complete(job)
    assert made.watch(answer, job, **options) is answer
    assert made.parity.counts() == []


async def test_no_policy_no_parity(bench: Make, openai_server: Make) -> None:
    server = openai_server()
    made = bench(manifest_text([server.url], [server.url]).split("---")[0])
    await made.ask(chat("tokens=1"))
    assert made.parity.counts() == []


async def test_reader_gets_a_stream_as_it_came(pair: Make) -> None:
    bench, _, _ = pair()
    watched = await bench.ask(chat("tokens=20 split=7", stream=True))
    unwatched = await bench.ask(chat("tokens=20 split=7", stream=True), draw=1.0)
    assert b"".join(piece.data for piece in watched) == b"".join(piece.data for piece in unwatched)


async def test_stream_that_its_client_left_is_not_compared(pair: Make) -> None:
    bench, plain, _ = pair()
    job = bench.job(chat("tokens=50 gap=0.01", stream=True))
    stream = bench.watch(await bench.served.speculative.replicas[0].upstream.open(job), job)
    await stream.next()
    await stream.aclose()
    await bench.ask(chat("tokens=1"))
    await bench.counted({"checked": 1})
    assert len(plain.requests) == 1


async def test_answer_beyond_the_limit_is_passed_on_and_dropped(pair: Make) -> None:
    bench, plain, _ = pair()
    pieces = await bench.ask(chat(f"tokens=3 big={MAX_ANSWER_BYTES // 8}", stream=True))
    assert sum(len(piece.data) for piece in pieces) > MAX_ANSWER_BYTES
    await bench.counted({"too_large": 1})
    assert plain.requests == []


async def test_nothing_is_replayed_while_the_server_is_busy(pair: Make) -> None:
    bench, plain, _ = pair()
    bench.plain.acquire(0, 0.0)
    await bench.ask(chat("tokens=1"))
    await asyncio.sleep(0.2)  # ten looks
    assert plain.requests == []
    bench.plain.release(0, 0.0)
    await bench.counted({"checked": 1})


async def test_nothing_is_replayed_while_a_request_waits_for_a_place(pair: Make) -> None:
    bench, plain, _ = pair()
    assert bench.admission.try_enter("acme")
    waiting = asyncio.create_task(bench.admission.enter("acme"))
    await bench.ask(chat("tokens=1"))
    await asyncio.sleep(0.2)  # ten looks
    assert plain.requests == []
    bench.admission.leave("acme")
    await waiting
    await bench.counted({"checked": 1})


async def test_replay_gives_way_to_a_request_and_is_done_later(pair: Make) -> None:
    bench, plain, _ = pair()
    plain.pace_s = 2.0
    await bench.ask(chat("tokens=8 gap", stream=True))
    await bench.until(lambda: len(plain.requests) == 1)
    bench.plain.acquire(0, 0.0)
    await bench.until(lambda: bench.plain.outstanding == 1)
    assert await asyncio.to_thread(plain.cancelled.wait, PATIENCE_S)
    plain.pace_s = 0.0
    bench.plain.release(0, 0.0)
    await bench.counted({"checked": 1})
    assert len(plain.requests) == 2


async def test_replay_that_always_has_to_give_way_is_dropped(pair: Make) -> None:
    bench, plain, _ = pair()
    plain.pace_s = 2.0
    await bench.ask(chat("tokens=8 gap", stream=True))
    for attempt in range(MAX_ATTEMPTS):
        await bench.until(lambda attempt=attempt: len(plain.requests) == attempt + 1)
        bench.plain.acquire(0, 0.0)
        await bench.until(lambda: bench.plain.outstanding == 1)
        bench.plain.release(0, 0.0)
    await bench.counted({"gave_way": 1})


async def test_full_queue_drops_its_oldest(pair: Make) -> None:
    bench, plain, _ = pair(max_queued=2)
    bench.plain.acquire(0, 0.0)
    for tokens in (1, 2, 3):
        await bench.ask(chat(f"tokens={tokens}"))
    assert bench.total() == {"queue_full": 1}
    bench.plain.release(0, 0.0)
    await bench.counted({"checked": 2, "queue_full": 1})
    assert [request["messages"][0]["content"] for request in plain.requests] == ["tokens=2", "tokens=3"]


async def test_answer_of_another_manifest_is_not_compared(pair: Make) -> None:
    bench, plain, speculative = pair()
    bench.plain.acquire(0, 0.0)
    await bench.ask(chat("tokens=1"))
    bench.load(manifest_text([plain.url], [speculative.url], policy=ALL + ", margin: 0.5"))
    await bench.counted({"stale": 1})
    assert plain.requests == []


async def test_reload_does_not_close_the_server_of_a_running_replay(pair: Make, openai_server: Make) -> None:
    bench, plain, speculative = pair()
    await bench.ask(chat("tokens=6 gap=0.05", stream=True))
    await bench.until(lambda: len(plain.requests) == 1)
    before = bench.fleet.current
    bench.load(manifest_text([openai_server().url], [speculative.url], policy=ALL))
    await bench.counted({"checked": 1})
    await bench.until(lambda: before.in_use == 0)


async def test_failed_replay_is_dropped_and_says_nothing_of_the_servers_health(
    bench: Make, openai_server: Make
) -> None:
    made = bench(manifest_text([dead_url()], [openai_server().url], policy=ALL))
    for _ in range(3):
        await made.ask(chat("tokens=1"))
    await made.counted({"failed": 3})
    assert not made.plain.ejected
    assert made.plain.outstanding == 0


@pytest.mark.parametrize("script", ["tokens=2 early-end", "tokens=9 gap=5"])
async def test_replay_without_an_end_is_dropped_in_time(pair: Make, script: str) -> None:
    bench, _, _ = pair(replay_timeout_s=0.3)
    await bench.ask(chat(script, stream=True), watched=await _short_stream(bench))
    await bench.counted({"failed": 1})


async def test_answer_in_no_known_form_is_dropped(pair: Make) -> None:
    bench, _, _ = pair()
    job = bench.job(chat("tokens=1"))
    completion = await bench.plain.upstream.complete(job)
    broken = type(completion)(pieces=(Wire(b'{"choices": [{"message": {"content": 7}}]}'),), usage=completion.usage)
    bench.watch(broken, job)
    await bench.counted({"unreadable": 1})


async def test_close_cancels_a_replay_at_once_and_takes_no_more(pair: Make) -> None:
    bench, plain, _ = pair()
    await bench.ask(chat("tokens=100 gap=1", stream=True), watched=await _short_stream(bench))
    await bench.until(lambda: len(plain.requests) == 1)
    async with asyncio.timeout(60):  # what is left of the replay takes 99 s
        await bench.parity.aclose()
    assert await asyncio.to_thread(plain.cancelled.wait, PATIENCE_S)
    assert bench.plain.outstanding == 0
    await bench.ask(chat("tokens=1"))
    await asyncio.sleep(0.2)  # ten looks, if there were any
    assert len(plain.requests) == 1
    assert bench.total() == {}
