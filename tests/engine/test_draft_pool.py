"""Several drafts in one engine: answers stay equal, each request has one draft, and its group's best one is learned."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.drafts.choice import DraftBandit
from slipstream_engine.drafts.pool import DraftPool
from slipstream_engine.drafts.sources import DraftRow, ModelDrafts, PromptLookup
from slipstream_engine.errors import DraftMismatchError
from slipstream_engine.model.model import Model
from slipstream_engine.serving.service import EngineService
from slipstream_engine.step.engine import Engine
from slipstream_engine.step.sequence import Sequence

from tests.engine.requests_and_answers import Make, drain, generation_request, tokens_of

CPU = torch.device("cpu")
TEXT = list(b"abcdefgabcd")


class _InTurn(DraftBandit):
    """Chooses the drafts in their order."""

    def choose(self, group: str) -> int:
        self.last = getattr(self, "last", -1) + 1
        return self.last


def _request(name: str, draft_tokens: int = 3, **changes: object) -> GenerationRequest:
    fields = {"max_tokens": 12, "sampling": SamplingParams(temperature=0.9, seed=len(name)), "group": "a"}
    return generation_request(name, prompt_ids=(1, 2, 3, len(name)), draft_tokens=draft_tokens, **(fields | changes))


@pytest.fixture
def engine(pair_folder: Path, make_engine: Make) -> Engine:
    return make_engine("close", more_drafts=f"{pair_folder / 'far'}\n{pair_folder / 'eagle'}", max_waiting=200)


def test_answers_are_those_of_plain_decoding_whatever_the_draft(engine: Engine, make_engine: Make) -> None:
    """Requests with different drafts are verified in one batch, and some of them are plain."""
    names = [f"r{'x' * number}" for number in range(24)]
    drafted = drain(engine, [_request(name, draft_tokens=number % 4) for number, name in enumerate(names)])
    plain = drain(make_engine(None, max_waiting=200), [_request(name, draft_tokens=0) for name in names])
    assert {name: tokens_of(chunks) for name, chunks in drafted.items()} == {
        name: tokens_of(chunks) for name, chunks in plain.items()
    }
    drafts = {number: drafted[name][-1].counts.draft for number, name in enumerate(names)}
    assert {drafts[number] for number in drafts if number % 4 == 0} == {""}
    assert {drafts[number] for number in drafts if number % 4} == {"close", "far", "eagle"}


def test_the_draft_that_costs_least_wins(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of steps, since the time of models this small is noise: the close one is accepted most."""
    steps = property(lambda sequence: (float(sequence._steps), len(sequence.tokens) - 5))
    monkeypatch.setattr(Sequence, "decoded", steps)
    assert engine._draft_source is not None
    monkeypatch.setattr(engine._draft_source.choice, "_rng", random.Random(5))
    for number in range(60):
        drain(engine, [_request(f"w{number}", max_tokens=40)])
    last = [drain(engine, [_request(f"l{number}", max_tokens=40)])[f"l{number}"][-1] for number in range(30)]
    taken = Counter(chunk.counts.draft for chunk in last)
    assert taken["close"] > 20


def test_each_draft_s_time_is_charged_to_its_own_requests(pair_folder: Path) -> None:
    """One source after the other, each with the lengths of its own rows."""
    model = Model.load(pair_folder / "close", device=CPU, dtype=torch.float32)
    pool = DraftPool({"copies": PromptLookup(2, CPU), "model": ModelDrafts(model, 2, 257)}, _InTurn(2))
    for slot in range(2):
        pool.start(slot, "a")
    calls: list[tuple[int, list[int]]] = []
    with torch.inference_mode():
        pool.propose(
            [DraftRow(0, TEXT, 3), DraftRow(1, TEXT, 2)], lambda number, lengths: calls.append((number, lengths))
        )
    assert calls == [(0, [3, 0]), (1, [0, 2])]


def test_an_engine_names_its_drafts_if_there_are_several(engine: Engine, make_engine: Make) -> None:
    assert EngineService(engine).facts().drafts == ("close", "far", "eagle")
    assert EngineService(make_engine("close")).facts().drafts == ()
    assert EngineService(make_engine("ngram")).facts().drafts == ()


def test_hybrid_drafts_have_copies_beside_each_model(pair_folder: Path, make_engine: Make) -> None:
    engine = make_engine("ngram+close", more_drafts=str(pair_folder / "far"))
    names = {
        drain(engine, [_request(f"h{number}", adaptive=True)])[f"h{number}"][-1].counts.draft for number in range(12)
    }
    assert names == {"close", "far"}


def test_drafts_of_one_name_are_numbered(pair_folder: Path, make_engine: Make, tmp_path: Path) -> None:
    (tmp_path / "close").symlink_to(pair_folder / "far")
    assert make_engine("close", more_drafts=str(tmp_path / "close")).draft_names == ("close", "close-2")


def test_a_further_draft_that_does_not_fit_is_named(make_engine: Make) -> None:
    with pytest.raises(DraftMismatchError, match=r"draft 'embedded:draft': the draft's vocabulary differs"):
        make_engine("close", more_drafts="embedded:draft")
    assert make_engine("close", more_drafts="embedded:draft", on_draft_mismatch="plain").draft_names == ()


def test_what_is_accepted_is_learned_for_each_group(make_engine: Make) -> None:
    """Also by an engine with one draft: evidence of one group is unknown in another."""
    engine = make_engine("close")
    drain(engine, [_request("a"), _request("bb", group="b"), _request("ccc", group="a")])
    known = engine._draft_rows.chances._log_odds
    assert {kind // 128 for kind in known} == {0, 1}


@torch.inference_mode()
def test_a_batch_has_the_drafts_of_each_source(pair_folder: Path) -> None:
    model = Model.load(pair_folder / "close", device=CPU, dtype=torch.float32)
    sources = {
        "copies": PromptLookup(3, CPU),
        "first": ModelDrafts(model, 3, 257),
        "second": ModelDrafts(model, 3, 257),
    }
    pool = DraftPool(sources, _InTurn(3))
    assert [pool.start(slot, "a") for slot in range(3)] == list(sources)
    rows = [DraftRow(slot, TEXT, length) for slot, length in enumerate((3, 2, 1))]
    found = pool.propose(rows)
    assert found.lengths == [3, 2, 1]
    assert found.token_ids[0].tolist() == list(b"efg")
    assert found.token_ids[1, 0] == found.token_ids[2, 0] >= 0
    evidence = [set(offer.evidence) for row in rows for offer in pool.offers(row)]
    assert len(set.union(*evidence)) == sum(map(len, evidence)) == 6
    for slot in range(3):
        pool.release(slot)
