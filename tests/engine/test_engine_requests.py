"""How a request lives and ends in the engine: limits, stops, cancellation, counts, fairness."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from slipstream_engine.contract.types import Chunk, FinishReason, SamplingParams
from slipstream_engine.drafts.pool import DraftPool
from slipstream_engine.drafts.sources import DraftRow, DraftSource, ModelDrafts, PromptLookup
from slipstream_engine.errors import CheckpointError, ClosedError, DraftMismatchError, OverloadedError, RequestError
from slipstream_engine.model.model import Model
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.serving.service import EngineService
from slipstream_engine.settings import EngineSettings
from slipstream_engine.step.engine import Engine
from slipstream_engine.text.tokenizer import Tokenizer

from tests.engine.requests_and_answers import (
    PROMPT,
    Make,
    drain,
    generation_request,
    is_closing,
    text_of,
    tokens_of,
    without_engine_time,
)
from tests.support.polling import eventually

_request = partial(generation_request, max_tokens=30)


@pytest.mark.parametrize("draft_tokens", [0, 1, 5])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens_is_exact_whatever_the_draft_length(make_engine: Make, draft_tokens: int, max_tokens: int) -> None:
    request = _request(max_tokens=max_tokens, draft_tokens=draft_tokens)
    (row,) = drain(make_engine("close"), [request]).values()
    assert len(tokens_of(row)) == max_tokens
    assert row[-1].finish_reason is FinishReason.LENGTH
    assert [chunk.finish_reason for chunk in row[:-1]] == [None] * (len(row) - 1)


@pytest.mark.parametrize("draft_tokens", [0, 5])
def test_the_context_ends_an_answer(make_engine: Make, draft_tokens: int) -> None:
    request = _request(max_tokens=10_000, draft_tokens=draft_tokens)
    (row,) = drain(make_engine("close", context_tokens=64), [request]).values()
    assert row[-1].finish_reason is FinishReason.LENGTH
    assert len(tokens_of(row)) == 64 - len(PROMPT)


def test_a_draft_with_a_shorter_context_stops_drafting_not_decoding(
    make_engine: Make, pair_folder: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short"
    short.mkdir()
    for file in (pair_folder / "close").iterdir():
        (short / file.name).write_bytes(file.read_bytes())
    config = short / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 160', '"max_position_embeddings": 48'))
    plain = drain(make_engine(None), [_request(max_tokens=60)])["a"]
    row = drain(make_engine(str(short)), [_request(max_tokens=60, draft_tokens=4)])["a"]
    assert tokens_of(row) == tokens_of(plain)
    assert 0 < row[-1].counts.drafted < 40


@pytest.mark.parametrize("draft_tokens", [0, 4])
def test_eos_ends_an_answer_and_is_not_text(make_engine: Make, draft_tokens: int) -> None:
    answers = [
        drain(
            make_engine("close"),
            [
                _request(
                    draft_tokens=draft_tokens,
                    sampling=SamplingParams(temperature=3.0, seed=s),
                    max_tokens=110,
                )
            ],
        )["a"]
        for s in range(12)
    ]
    ended = [row for row in answers if row[-1].finish_reason is FinishReason.STOP]
    assert ended, "no seed reached EOS: the test shows nothing"
    for row in ended:
        assert tokens_of(row)[-1] == 256
        assert 256 not in tokens_of(row)[:-1]
        assert "<|end|>" not in text_of(row)


@pytest.mark.parametrize("draft_tokens", [0, 1, 3, 7])
def test_stop_string_across_tokens_ends_the_answer_before_it(make_engine: Make, draft_tokens: int) -> None:
    """Every byte is a token here, so that any stop string of three bytes spans three tokens, and often two steps."""
    engine = make_engine("close")
    whole = text_of(drain(engine, [_request("w")])["w"])
    stop = next(whole[i : i + 3] for i in range(8, 20) if whole[i : i + 3].isprintable())
    row = drain(engine, [_request("s", stop=("never seen", stop), draft_tokens=draft_tokens)])["s"]
    assert text_of(row) == whole[: whole.index(stop)]
    assert row[-1].finish_reason is FinishReason.STOP


def test_counts_add_up(make_engine: Make) -> None:
    (row,) = drain(make_engine("close"), [_request(draft_tokens=4, max_tokens=50)]).values()
    counts = row[-1].counts
    assert counts.prompt_tokens == len(PROMPT)
    assert counts.output_tokens == 50 == len(tokens_of(row))
    # the prompt's last position gives one token, every step its accepted drafts and one of the target's own
    assert counts.output_tokens == 1 + counts.steps + counts.accepted
    assert 0 < counts.accepted <= counts.drafted <= 4 * counts.steps
    assert (sum(counts.drafted_by_step), sum(counts.accepted_by_step)) == (counts.drafted, counts.accepted)
    drafted = [chunk.counts.drafted for chunk in row]
    assert drafted == sorted(drafted)


@pytest.mark.parametrize(("draft_tokens", "fewest", "most"), [(0, 15, 15), (4, 4, 12)])
def test_a_long_prompt_does_not_stall_a_running_stream(
    make_engine: Make, draft_tokens: int, fewest: int, most: int
) -> None:
    """A stream waits for 8 prompt tokens per output token; a step that verifies drafts has several output tokens."""
    engine = make_engine("close", prefill_chunk_tokens=8)
    engine.add(_request("running", max_tokens=100, draft_tokens=draft_tokens))
    for _ in range(10):
        engine.step()
    engine.add(_request("long", prompt_ids=tuple(range(120)), max_tokens=2))
    steps = 0
    while True:
        chunks = engine.step()
        steps += 1
        assert any(chunk.request_id == "running" for chunk in chunks)
        if any(chunk.request_id == "long" for chunk in chunks):
            break
    assert fewest <= steps <= most


def test_cancelled_request_frees_its_slot_at_once(make_engine: Make) -> None:
    engine = make_engine("close", max_slots=1)
    engine.add(_request("a", draft_tokens=3))
    engine.add(_request("b"))
    engine.step()
    chunk = engine.cancel("a")
    assert chunk is not None
    assert chunk.finish_reason is FinishReason.CANCELLED
    assert {c.request_id for c in engine.step()} == {"b"}
    assert engine.cancel("a") is None


def test_a_freed_slot_remembers_nothing(make_engine: Make) -> None:
    """A request that was cancelled in mid-prompt leaves keys and drafts behind; the next one must not see them."""
    expected = drain(make_engine("close", max_slots=1, prefill_chunk_tokens=4), [_request("b", draft_tokens=4)])["b"]
    engine = make_engine("close", max_slots=1, prefill_chunk_tokens=4)
    engine.add(_request("a", prompt_ids=tuple(range(100)), draft_tokens=4))
    engine.step()
    engine.cancel("a")
    found = drain(engine, [_request("b", draft_tokens=4)])["b"]
    assert without_engine_time(found) == without_engine_time(expected)  # tokens, text and counts


def test_a_reused_request_id_brings_its_own_sampling(make_engine: Make) -> None:
    engine = make_engine(None)
    hot = SamplingParams(temperature=2.0, seed=3)
    expected = tokens_of(drain(make_engine(None), [_request(sampling=hot)])["a"])
    drain(engine, [_request()])
    assert tokens_of(drain(engine, [_request(sampling=hot)])["a"]) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": ()}, "expected at least one token, got none"),
        ({"prompt_ids": tuple(range(160))}, "160 tokens.*160 tokens"),
        ({"prompt_ids": (1, 300)}, "expected one of the model's 257 token ids, got 300"),
        ({"prompt_ids": (1, -4)}, "got -4"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 2, "resume_ids": (5, 6)}, "already hold 2 tokens"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("x",), "resume_ids": (ord("x") - ord("!"),)}, "already hold a stop string"),
        ({"resume_ids": (5, 256)}, "EOS"),
        ({"sampling": SamplingParams(temperature=-1.0)}, "temperature must be between 0 and 1e.06, got -1.0"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "temperature"),
        ({"sampling": SamplingParams(top_p=1.5)}, "top_p must be between 0 and 1, got 1.5"),
        ({"sampling": SamplingParams(top_k=-2)}, "top_k must not be negative, got -2"),
        ({"draft_tokens": -1}, "draft_tokens must not be negative, got -1"),
    ],
)
def test_impossible_request_is_refused_with_its_numbers(
    make_engine: Make, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        make_engine("close").add(_request(**changes))


def test_draft_with_another_tokenizer_is_refused_at_load(pair_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in (pair_folder / "far").iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(
        text.replace('"A": 32', '"A": 999').replace('"B": 33', '"B": 32').replace('"A": 999', '"A": 33')
    )
    settings = EngineSettings(target=str(pair_folder / "target"), draft=str(other), draft_kind="model")
    with pytest.raises(DraftMismatchError, match="'A'"):
        load_engine(settings)


def test_missing_checkpoint_is_named() -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        load_engine(EngineSettings(target="/nowhere"))


@pytest.fixture
def service(make_engine: Make) -> Iterator[EngineService]:
    service = EngineService(make_engine("close", max_slots=2, max_waiting=1))
    service.begin()
    yield service
    service.close()


def _finish(chunks: queue.Queue[Chunk]) -> Chunk:
    while True:
        chunk = chunks.get(timeout=30)
        if chunk.finish_reason is not None:
            return chunk


def test_service_serves_threads_and_refuses_what_does_not_fit(service: EngineService) -> None:
    chunks: queue.Queue[Chunk] = queue.Queue()
    gate = threading.Event()

    def held(chunk: Chunk) -> None:
        gate.wait(30)  # holds the step thread, so that nothing ends while the queue fills
        chunks.put(chunk)

    for name in ("a", "b", "c"):
        service.submit(_request(name, draft_tokens=2), held)
    with pytest.raises(OverloadedError, match="3 requests"):
        service.submit(_request("d"), chunks.put)
    with pytest.raises(RequestError, match="'a' is in use"):
        service.submit(_request("a"), chunks.put)
    gate.set()
    assert {_finish(chunks).request_id for _ in range(3)} == {"a", "b", "c"}
    service.submit(_request("d"), chunks.put)
    assert _finish(chunks).finish_reason is FinishReason.LENGTH


def test_service_cancels_a_running_and_a_waiting_request(service: EngineService) -> None:
    chunks: dict[str, queue.Queue[Chunk]] = {name: queue.Queue() for name in "abc"}
    gate = threading.Event()

    def held(chunk: Chunk) -> None:
        gate.wait(30)  # holds the step thread until all is cancelled: "c" still waits for a slot then
        chunks["a"].put(chunk)

    service.submit(_request("a", max_tokens=100), held)
    service.submit(_request("b", max_tokens=100), chunks["b"].put)
    service.submit(_request("c", max_tokens=100), chunks["c"].put)
    for name in ("a", "c", "unknown"):
        service.cancel(name)
    gate.set()
    assert _finish(chunks["a"]).finish_reason is FinishReason.CANCELLED
    assert _finish(chunks["c"]).finish_reason is FinishReason.CANCELLED
    assert _finish(chunks["b"]).finish_reason is FinishReason.LENGTH


def test_a_callback_that_fails_hurts_nobody_else(service: EngineService, caplog: pytest.LogCaptureFixture) -> None:
    def broken(chunk: Chunk) -> None:
        raise ValueError("the caller's own fault")

    good: queue.Queue[Chunk] = queue.Queue()
    service.submit(_request("bad"), broken)
    service.submit(_request("good"), good.put)
    assert _finish(good).finish_reason is FinishReason.LENGTH
    assert "callback of request bad failed" in caplog.text


def test_closing_ends_what_runs_as_cancelled(make_engine: Make) -> None:
    service = EngineService(make_engine(None, max_slots=1))
    service.begin()
    chunks: queue.Queue[Chunk] = queue.Queue()
    closer = threading.Thread(target=service.close)

    def put_and_close(chunk: Chunk) -> None:
        if not closer.ident:  # the first chunk
            closer.start()
            eventually(lambda: is_closing(service), "the service refuses requests")
        chunks.put(chunk)

    service.submit(_request(max_tokens=100), put_and_close)
    assert _finish(chunks).finish_reason is FinishReason.CANCELLED
    closer.join(30)
    with pytest.raises(ClosedError, match="shutting down"):
        service.submit(_request("late"), chunks.put)


def test_closing_a_service_that_never_began_does_nothing(make_engine: Make) -> None:
    EngineService(make_engine(None)).close()


def test_an_id_can_be_used_again_after_its_last_callback_failed(service: EngineService) -> None:
    again: queue.Queue[Chunk] = queue.Queue()

    def resubmit_then_fail(chunk: Chunk) -> None:
        service.submit(_request("a", max_tokens=3), again.put)
        raise ValueError("the caller's own fault")

    service.submit(_request("a", max_tokens=1), resubmit_then_fail)
    assert _finish(again).counts.output_tokens == 3


class _FailingOnce:
    """A draft source whose first proposal fails: what a driver error in the middle of a step looks like."""

    def __init__(self, inner: DraftSource) -> None:
        self._inner, self._failed = inner, False

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def propose(self, rows: object, drafted: object) -> object:
        if not self._failed:
            self._failed = True
            raise RuntimeError("out of memory")
        return self._inner.propose(rows, drafted)  # type: ignore[arg-type]


def test_a_failing_step_ends_its_requests_and_the_next_ones_are_served(pair_folder: Path, make_engine: Make) -> None:
    target = Model.load(pair_folder / "target", device=torch.device("cpu"), dtype=torch.float32)
    source = _FailingOnce(DraftPool({"own": ModelDrafts(target, 2, 257)}))
    engine = Engine(
        target,
        Tokenizer.load(pair_folder / "target"),
        source,  # type: ignore[arg-type]
        slots=2,
        max_draft_tokens=4,
        max_waiting=4,
        prefill_chunk_tokens=64,
    )
    service = EngineService(engine)
    service.begin()
    try:
        chunks: queue.Queue[Chunk] = queue.Queue()
        service.submit(_request("a", draft_tokens=3), chunks.put)
        last = _finish(chunks)
        assert (last.finish_reason, last.error) == (FinishReason.ERROR, "the engine failed: out of memory")
        for name in ("b", "c", "d"):
            service.submit(_request(name, draft_tokens=3), chunks.put)
        assert {_finish(chunks).finish_reason for _ in range(3)} == {FinishReason.LENGTH}
    finally:
        service.close()


def test_drafts_are_counted_step_by_step(make_engine: Make) -> None:
    row = drain(make_engine("close"), [_request(draft_tokens=3, max_tokens=80)])["a"]
    totals = [(chunk.counts.drafted, chunk.counts.accepted) for chunk in row]
    steps = [(drafted - before[0], accepted - before[1]) for before, (drafted, accepted) in pairwise(totals)]
    counts = row[-1].counts
    assert list(zip(counts.drafted_by_step, counts.accepted_by_step, strict=True)) == [
        (drafted, accepted) for drafted, accepted in steps if drafted
    ]
    assert any(0 < accepted < drafted for drafted, accepted in steps), "the test shows nothing"


def test_accepted_tokens_after_a_stop_string_are_not_counted(make_engine: Make) -> None:
    engine = make_engine("close")
    whole = text_of(drain(engine, [_request("w")])["w"])
    for start in range(4, 16):
        row = drain(engine, [_request("s", stop=(whole[start],), draft_tokens=7)])["s"]
        assert row[-1].counts.accepted <= row[-1].counts.output_tokens == len(tokens_of(row))


def test_text_held_back_for_a_stop_string_comes_out_at_the_end(make_engine: Make) -> None:
    engine = make_engine(None)
    whole = text_of(drain(engine, [_request("w", max_tokens=10)])["w"])
    row = drain(engine, [_request("s", max_tokens=10, stop=(whole[-2:] + "never",))])["s"]
    assert text_of(row) == whole


def test_a_short_prompt_passes_long_ones_and_the_oldest_is_not_starved(make_engine: Make) -> None:
    engine = make_engine(None, prefill_chunk_tokens=4, max_slots=4)
    engine.add(_request("x", max_tokens=1, prompt_ids=(1, 2)))
    engine.step()
    for name, length in (("long", 80), ("long too", 90), ("short", 6)):
        engine.add(_request(name, max_tokens=1, prompt_ids=tuple(range(length))))
    order = []
    while engine.busy:
        order += [chunk.request_id for chunk in engine.step()]
    assert order == ["short", "long", "long too"]


def test_an_overflowing_request_ends_with_an_error_and_leaves_no_trace(pair_folder: Path, tmp_path: Path) -> None:
    """Token 77's embedding is infinite: whatever attends to it is NaN, and so would be whoever gets its slot."""
    folder = tmp_path / "overflowing"
    shutil.copytree(pair_folder / "target", folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][77] = float("inf")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    settings = EngineSettings(
        target=str(folder), draft=str(folder), draft_kind="model", max_slots=2, threads=1, device="cpu"
    )
    good = _request("good", prompt_ids=(5, 6, 7), draft_tokens=2)
    expected = tokens_of(drain(load_engine(settings), [good])["good"])
    engine = load_engine(settings)
    bad = _request("bad", prompt_ids=(77,) * 90, draft_tokens=2)
    row = drain(engine, [bad])["bad"]
    assert row[-1].finish_reason is FinishReason.ERROR
    assert "not finite" in str(row[-1].error)
    neighbour = _request("neighbour", prompt_ids=tuple(range(70)), draft_tokens=2)
    assert tokens_of(drain(engine, [good, neighbour])["good"]) == expected


def test_a_released_slot_forgets_its_n_grams(make_engine: Make) -> None:
    repeated = tuple(b"abcdef") * 4
    engine = make_engine("ngram", max_slots=1)
    alone = drain(make_engine("ngram", max_slots=1), [_request("b", draft_tokens=4)])["b"]
    drain(engine, [_request("a", prompt_ids=PROMPT + repeated, draft_tokens=4)])
    found = drain(engine, [_request("b", draft_tokens=4)])["b"]
    assert without_engine_time(found)[-1].counts == without_engine_time(alone)[-1].counts


def test_prompt_lookup_goes_on_round_a_period() -> None:
    source = PromptLookup(1, torch.device("cpu"))
    tokens = [9, 1, 2, 3, 1, 2, 3, 1, 2, 3]
    drafts = source.propose([DraftRow(0, tokens, 5)])
    assert drafts.token_ids.tolist() == [[1, 2, 3, 1, 2]]


@pytest.mark.parametrize(
    ("field", "value"), [("max_slots", 0), ("context_tokens", 0), ("prefill_chunk_tokens", 0), ("threads", 0)]
)
def test_settings_out_of_range_name_their_field(field: str, value: int) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert({"target": "embedded:target", field: value}, EngineSettings)
