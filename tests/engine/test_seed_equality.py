"""One seed, one answer: a sampled answer is plain decoding's, token for token, whatever happens to its request."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.drafts.sources import Drafts
from slipstream_engine.step.engine import Engine
from slipstream_engine.step.sequence import Sequence as RunningRequest
from slipstream_engine.step.verification import Verifier
from slipstream_kernels import SamplingBatch
from torch import Tensor

from tests.engine.requests_and_answers import Make, drain, tokens_of
from tests.engine.seeded_runs import LONGEST_DRAFT, DisturbedRun, plain_tokens, sampled_requests

PROMPTS = [tuple(b"Reason for contact: delivery delay. "), tuple(b"abcabcabcabcab"), tuple(b"Z"), tuple(range(40, 90))]
ARMS = ("close", "far", "eagle", "ngram", "ngram+close", None)
REQUESTS = 80


def _engines(make_engine: Make, kind: type[Verifier] = Verifier) -> list[Engine]:
    engines = [make_engine(arm, max_draft_tokens=LONGEST_DRAFT, max_waiting=REQUESTS) for arm in ARMS]
    for engine in engines:
        engine._verifier.__class__ = kind
    return engines


def _differing(engines: Sequence[Engine], requests: int, seed: int) -> list[str]:
    random_ = random.Random(seed)
    asked = sampled_requests(random_, PROMPTS, requests, max_tokens=24)
    plain = plain_tokens(engines[-1], asked)
    found, events = DisturbedRun(random_, engines).tokens(asked)
    assert min(events) > 0  # kills, resumptions, rejected and accepted drafts
    assert events.accepted < events.drafted
    return [name for name in plain if plain[name] != found[name]]


def test_sampled_answers_are_those_of_plain_decoding(make_engine: Make) -> None:
    """Arms, draft lengths 0 to 8, fixed and chosen by the engine, batch company, kills and resumptions elsewhere."""
    assert _differing(_engines(make_engine), REQUESTS, seed=1) == []


class _NoiseBySlot(Verifier):
    """Wrong: the noise of a request depends on its slot in the batch."""

    def _sampling_of(self, sequences: Sequence[RunningRequest]) -> SamplingBatch:
        return dataclasses.replace(super()._sampling_of(sequences), seed=torch.tensor([s.slot for s in sequences]))


class _NoiseBySteps(Verifier):
    """Wrong: the noise of a token depends on the steps so far, not on its position."""

    def _sampling_of(self, sequences: Sequence[RunningRequest]) -> SamplingBatch:
        batch = super()._sampling_of(sequences)
        return dataclasses.replace(batch, seed=batch.seed + torch.tensor([s._steps for s in sequences]))


class _EmitsDrafts(Verifier):
    """Wrong: a rejected draft token is emitted in place of the target's."""

    def emitted(self, logits: Tensor, sequences: Sequence[RunningRequest], drafts: Drafts) -> Any:
        emitted = super().emitted(logits, sequences, drafts)
        for row, (ids, *_) in enumerate(emitted):
            if len(ids) <= drafts.lengths[row]:
                ids[-1] = int(drafts.token_ids[row, len(ids) - 1])
        return emitted


class _AcceptsTooMany(Verifier):
    """Wrong: the draft token after the first one that differs is accepted, too."""

    def emitted(self, logits: Tensor, sequences: Sequence[RunningRequest], drafts: Drafts) -> Any:
        emitted = super().emitted(logits, sequences, drafts)
        for row, (ids, *_) in enumerate(emitted):
            if len(ids) < drafts.lengths[row]:
                ids.append(int(drafts.token_ids[row, len(ids)]))
        return emitted


@pytest.mark.parametrize("mutant", [_NoiseBySlot, _NoiseBySteps, _EmitsDrafts, _AcceptsTooMany])
def test_a_wrong_engine_is_noticed(make_engine: Make, mutant: type[Verifier]) -> None:
    assert len(_differing(_engines(make_engine, mutant), 40, seed=2)) > 4


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_answer_resumes_after_any_token_on_any_arm(make_engine: Make, data: st.DataObject) -> None:
    request = GenerationRequest(
        request_id="a",
        prompt_ids=data.draw(st.sampled_from(PROMPTS)),
        max_tokens=24,
        sampling=SamplingParams(
            temperature=data.draw(st.floats(0.2, 1.5)),
            top_p=data.draw(st.sampled_from([0.6, 0.95, 1.0])),
            top_k=data.draw(st.sampled_from([0, 3, 50])),
            seed=data.draw(st.integers(-(2**63), 2**63 - 1)),
        ),
    )
    whole = plain_tokens(make_engine(None), [request])["a"]
    kept = data.draw(st.integers(1, len(whole) - 1)) if len(whole) > 1 else 0
    arm, length = data.draw(st.sampled_from(ARMS[:-1])), data.draw(st.integers(0, LONGEST_DRAFT))
    changes: dict[str, Any] = {"resume_ids": tuple(whole[:kept]), "draft_tokens": length}
    row = drain(make_engine(arm), [msgspec.structs.replace(request, **changes)])["a"]
    assert tokens_of(row) == whole[kept:]
