"""Drafts of n-grams and of a model in one engine: which of them a request gets, and that both are verified."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.drafts.draft_allocation import DraftRows
from slipstream_engine.drafts.hybrid import HybridDrafts
from slipstream_engine.drafts.sources import DraftRow, ModelDrafts, PromptLookup
from slipstream_engine.model.model import Model

from tests.engine.requests_and_answers import Make, drain, generation_request

CPU = torch.device("cpu")
REPEATED, NEW = list(b"abcdefgabcd"), list(b"0123456789")


@pytest.fixture
def drafts(pair_folder: Path) -> HybridDrafts:
    model = Model.load(pair_folder / "close", device=CPU, dtype=torch.float32)
    return HybridDrafts(PromptLookup(3, CPU), ModelDrafts(model, 3, 257))


def test_a_text_that_repeats_itself_has_two_offers_and_a_new_one_the_models(drafts: HybridDrafts) -> None:
    both = drafts.offers(DraftRow(0, REPEATED, 3, adaptive=True))
    assert [offer.copied for offer in both] == [True, False]
    assert set(both[0].evidence).isdisjoint(both[1].evidence)
    assert [offer.copied for offer in drafts.offers(DraftRow(1, NEW, 3, adaptive=True))] == [False]


def test_without_a_choice_the_own_text_decides(drafts: HybridDrafts) -> None:
    assert [offer.copied for offer in drafts.offers(DraftRow(0, REPEATED, 3))] == [True]
    assert [offer.copied for offer in drafts.offers(DraftRow(1, NEW, 3))] == [False]


@torch.inference_mode()
def test_a_batch_has_drafts_of_both(drafts: HybridDrafts) -> None:
    rows = [DraftRow(0, REPEATED, 3, copied=True), DraftRow(1, NEW, 2), DraftRow(2, REPEATED, 0, copied=True)]
    found = drafts.propose(rows)
    assert found.lengths == [3, 2, 0]
    assert found.token_ids[0].tolist() == list(b"efg")
    assert found.token_ids[1, 2] == found.token_ids[2].max() == -1


def test_a_sampled_answer_is_the_same_beside_requests_that_a_model_drafts_for(make_engine: Make) -> None:
    mine = _request("mine", REPEATED, SamplingParams(temperature=0.8, seed=7))
    others = [_request(str(seed), NEW, SamplingParams(temperature=1.0, seed=seed)) for seed in range(3)]
    alone = drain(make_engine("ngram+close"), [mine])["mine"]
    among = drain(make_engine("ngram+close"), [*others, mine])["mine"]
    assert [chunk.token_ids for chunk in among] == [chunk.token_ids for chunk in alone]


def test_the_engine_takes_the_likelier_draft(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the random target's text are rarely accepted, and the close model's drafts are."""
    monkeypatch.setattr(DraftRows, "note_step", lambda *_: None)  # rows cost nothing, whatever the machine does
    monkeypatch.setattr(DraftRows, "note_drafting", lambda *_: None)
    engine = make_engine("ngram+close", max_draft_tokens=4)
    requests = [
        generation_request(str(index), prompt_ids=(*REPEATED, index), max_tokens=60, draft_tokens=4, adaptive=True)
        for index in range(8)
    ]
    counts = [row[-1].counts for row in drain(engine, requests).values()]
    alone = [row[-1].counts for row in drain(make_engine("ngram", max_draft_tokens=4), requests).values()]
    assert sum(one.steps for one in counts) < 0.6 * sum(one.steps for one in alone)


def _request(name: str, prompt: list[int], sampling: SamplingParams) -> GenerationRequest:
    return generation_request(name, prompt_ids=tuple(prompt), max_tokens=30, sampling=sampling, draft_tokens=3)
