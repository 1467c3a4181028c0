"""Parity over real servers: what is compared, what is told of a difference, and that it takes nothing from anybody."""

from __future__ import annotations

import asyncio
import hashlib
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from slipstream_core.observation import ParityResult
from slipstream_core.types import Arm, Reason
from slipstream_gateway.lossless import parity
from slipstream_gateway.lossless.findings import Result
from slipstream_gateway.lossless.parity import FRESH_S
from slipstream_gateway.lossless.score import ALARM_AT
from slipstream_gateway.lossless.traffic import Candidate
from slipstream_gateway.lossless.withhold import SampledTests
from slipstream_gateway.request.answer_copy import MAX_ANSWER_BYTES
from slipstream_gateway.upstreams.base import Piece

from tests.gateway.lossless.likelihoods import answer
from tests.gateway.lossless.likelihoods import pair as scored
from tests.gateway.lossless.parity_bench import pieces_of
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


async def _short_stream(bench: Any) -> list[Piece]:
    """Stands for the speculative answer to a request whose plain answer takes long."""
    return await pieces_of(bench.served.speculative.replicas[0], bench.job(chat("tokens=2", stream=True)))


def count_of(bench: Any, request_class: str) -> Any:
    counts = [count for count in bench.parity.counts() if count.request_class == request_class]
    return counts[0] if counts else parity.ParityCount(pair="", request_class="", checked=0, mismatched=0, dropped={})


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
    longer = await pieces_of(bench.plain, bench.job(chat("tokens=5")))
    await bench.ask(chat("tokens=2"), pieces=longer)
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
async def test_what_is_not_comparable_or_not_drawn_is_not_replayed(
    bench: Make, openai_server: Make, body: dict[str, Any], options: dict[str, Any]
) -> None:
    server = openai_server()
    text = manifest_text([server.url], [server.url], policy=", parityShare: 0.5")
    made = bench(text.replace("plain: {", "plain: {unsupported: [tools], "))
    job = made.job(chat("tokens=1", **body))
    made.end(await pieces_of(made.plain, job), job, **options)
    await made.ask(chat("tokens=2"))
    await made.counted({"checked": 1})
    assert [one["messages"][0]["content"] for one in server.requests].count("tokens=1") == 1


async def test_no_policy_no_parity(bench: Make, openai_server: Make) -> None:
    server = openai_server()
    made = bench(manifest_text([server.url], [server.url]).split("---")[0])
    await made.ask(chat("tokens=1"))
    assert made.parity.counts() == []


@pytest.mark.parametrize("end", [{"status": "cancelled"}, {"runs": 1}])
async def test_answer_that_is_not_whole_or_whose_request_broke_a_server_is_not_replayed(
    pair: Make, end: dict[str, Any]
) -> None:
    bench, plain, _ = pair()
    await bench.ask(chat("tokens=5", stream=True), **end)
    await bench.ask(chat("tokens=1"))
    await bench.counted({"checked": 1})
    assert len(plain.requests) == 1


@pytest.mark.parametrize("temperature", [0, 0.8])
async def test_answer_beyond_the_limit_is_passed_on_and_dropped(pair: Make, temperature: float) -> None:
    """Also one that would be compared by its scores."""
    bench, plain, _ = pair()
    pieces = await bench.ask(chat(f"tokens=3 big={MAX_ANSWER_BYTES // 8}", stream=True, temperature=temperature))
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


@pytest.mark.parametrize("request_class", ["code/long", "chat/short"])
async def test_replay_takes_a_busy_server_after_a_while_and_keeps_it(pair: Make, request_class: str) -> None:
    """Clients that never leave the server alone, and more answers of one class than the queue holds."""
    bench, plain, _ = pair(max_queued=2, reserved_after_s=0.1)
    bench.plain.acquire(0, 0.0)
    jobs = {tokens: bench.job(chat(f"tokens={tokens}")) for tokens in (9, 1, 2, 3)}
    answers = {tokens: await pieces_of(bench.served.speculative.replicas[0], job) for tokens, job in jobs.items()}
    for tokens, job in jobs.items():  # all at once, before the first replay
        bench.end(answers[tokens], job, request_class=request_class if tokens == 9 else "code/long")
    await bench.until(lambda: bench.total().get("checked", 0) == 2)
    assert bench.plain.outstanding == 1
    assert bench.total() == {"checked": 2, "queue_full": 2}
    asked = {request["messages"][0]["content"] for request in plain.requests}
    assert ("tokens=9" in asked) == (request_class == "chat/short")


async def test_class_whose_replays_fail_holds_up_no_other(pair: Make) -> None:
    bench, plain, _ = pair()
    bench.plain.acquire(0, 0.0)
    pieces = await _short_stream(bench)
    for _ in range(3):
        await bench.ask(chat("die=0", stream=True), pieces=pieces, request_class="chat/short")
    await bench.ask(chat("tokens=2", stream=True))
    bench.plain.release(0, 0.0)
    await bench.counted({"checked": 1, "failed": 3})
    assert [request["messages"][0]["content"] for request in plain.requests][:2] == ["die=0", "tokens=2"]


async def test_comparisons_have_an_age_and_without_fresh_ones_there_is_no_result(
    pair: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, plain, _ = pair()
    plain.odd_token = 0
    for result in (Result.FAIL, Result.PASS):
        await bench.ask(chat("tokens=3"), request_class=result)
        await bench.until(lambda result=result: count_of(bench, result).checked == 1)
        plain.odd_token = None
        found = count_of(bench, result)
        assert found.result is result
        assert 0.0 <= found.age_s < FRESH_S
    monkeypatch.setattr(parity, "FRESH_S", 0.0)
    assert {found.result for found in bench.parity.counts()} == {Result.NO_DATA}


class Guards:
    """Takes the recorded comparisons in place of the guards."""

    canary = False

    def __init__(self) -> None:
        self.results: list[ParityResult] = []

    def record_parity(self, result: ParityResult, **_: Any) -> None:
        self.results.append(result)


class Pieces(list[Piece]):
    """An answer that a weak reference can follow."""


async def test_matches_before_an_alarm_become_mismatches_and_hold_no_answers(pair: Make) -> None:
    bench, _, _ = pair()
    guards, rng, told = Guards(), random.Random(1), list[Any]()
    tests = SampledTests(lambda *alarm: told.append(alarm))
    request, answers = bench.job(chat("tokens=1")).request, list[weakref.ref[Pieces]]()

    def judge(comparison: Any) -> bool:
        pieces = Pieces()
        answers.append(weakref.ref(pieces))
        candidate = Candidate(
            served=bench.served,
            decision=bench.decision(),
            request=request,
            request_id="r-1",
            authorization=None,
            pieces=pieces,
            size_bytes=0,
            observation=guards,  # type: ignore[arg-type]
        )
        return tests.judge(candidate, comparison)

    matches = 0
    while not told:
        matches += not judge(scored(answer(rng, wrong_every=3, tokens=20), answer(rng, tokens=20)))
    assert 0 < len(guards.results) <= matches
    assert set(guards.results) == {ParityResult.MISMATCH}
    assert not any(reference() is not None for reference in answers)


def _judged(bench: Any, tests: SampledTests, caller: str, comparison: Any) -> bool:
    candidate = Candidate(
        served=bench.served,
        decision=bench.decision(),
        request=bench.job(chat("tokens=1")).request,
        request_id="r-1",
        authorization=None,
        pieces=(),
        size_bytes=0,
        caller=caller,
    )
    return tests.judge(candidate, comparison)


@pytest.mark.parametrize("others", [1, 2, 5, 40])
async def test_one_key_alone_raises_no_alarm_beside_others(pair: Make, others: int) -> None:
    """It repeats a seed with which the two answers differ by chance; the others' answers are as they should be."""
    bench, _, _ = pair()
    rng, told = random.Random(1), list[Any]()
    tests = SampledTests(lambda *alarm: told.append(alarm))
    repeated = scored(answer(rng, wrong_every=3, tokens=20), answer(rng, tokens=20))
    for turn in range(400):
        _judged(bench, tests, "hostile", repeated)
        _judged(bench, tests, f"honest {turn % others}", scored(answer(rng, tokens=20), answer(rng, tokens=20)))
    assert not told
    evidence = tests.evidence((bench.served.route.key, bench.decision().request_class))
    assert evidence is not None
    assert evidence < ALARM_AT


@pytest.mark.parametrize("keys", [1, 2, 5, 40])
async def test_an_engine_that_is_wrong_for_every_key_raises_the_alarm(pair: Make, keys: int) -> None:
    bench, _, _ = pair()
    rng, told = random.Random(2), list[Any]()
    tests = SampledTests(lambda *alarm: told.append(alarm))
    for turn in range(60 * min(keys, 5)):
        wrong = scored(answer(rng, wrong_every=3, tokens=20), answer(rng, tokens=20))
        _judged(bench, tests, f"key {turn % keys}", wrong)
    assert len(told) == 1
    for turn in range(200):  # the alarm stays
        assert _judged(bench, tests, f"key {turn}", scored(answer(rng, tokens=20), answer(rng, tokens=20)))
    assert len(told) == 1


async def test_full_queue_drops_its_oldest(pair: Make) -> None:
    bench, plain, _ = pair(max_queued=2)
    bench.plain.acquire(0, 0.0)
    for tokens in (1, 2, 3):
        await bench.ask(chat(f"tokens={tokens}"))
    assert bench.total() == {"queue_full": 1}
    bench.plain.release(0, 0.0)
    await bench.counted({"checked": 2, "queue_full": 1})
    assert [request["messages"][0]["content"] for request in plain.requests] == ["tokens=2", "tokens=3"]


async def test_guards_get_a_record_of_drawn_answers_that_are_not_compared(pair: Make) -> None:
    bench, _, _ = pair(max_queued=1)
    guards = Guards()
    bench.plain.acquire(0, 0.0)
    for script in ("tokens=1", "tokens=2"):
        await bench.ask(chat(script), observation=guards)
    assert guards.results == [ParityResult.MISSED]
    bench.plain.release(0, 0.0)
    await bench.counted({"checked": 1, "queue_full": 1})
    await bench.ask(chat("die=0", stream=True), pieces=await _short_stream(bench), observation=guards)
    await bench.counted({"checked": 1, "queue_full": 1, "failed": 1})
    assert guards.results == [ParityResult.MISSED, ParityResult.MATCH, ParityResult.MISSED]


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
    await bench.ask(chat(script, stream=True), pieces=await _short_stream(bench))
    await bench.counted({"failed": 1})


async def test_answer_in_no_known_form_is_dropped(pair: Make) -> None:
    bench, _, _ = pair()
    await bench.ask(chat("tokens=1"), pieces=[Piece(b'{"choices": [{"message": {"content": 7}}]}')])
    await bench.counted({"unreadable": 1})


async def test_close_cancels_a_replay_at_once_and_takes_no_more(pair: Make) -> None:
    bench, plain, _ = pair()
    await bench.ask(chat("tokens=100 gap=1", stream=True), pieces=await _short_stream(bench))
    await bench.until(lambda: len(plain.requests) == 1)
    async with asyncio.timeout(60):  # what is left of the replay takes 99 s
        await bench.parity.aclose()
    assert await asyncio.to_thread(plain.cancelled.wait, PATIENCE_S)
    assert bench.plain.outstanding == 0
    await bench.ask(chat("tokens=1"))
    await asyncio.sleep(0.2)  # ten looks, if there were any
    assert len(plain.requests) == 1
    assert bench.total() == {}
