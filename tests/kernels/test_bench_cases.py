"""Benchmark inputs have the acceptance rate that their case states, and their bytes are counted correctly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from slipstream_kernels.spec_verify.benchmark import checks
from slipstream_kernels.spec_verify.benchmark.cases import Case, Kind, grid, inputs
from slipstream_kernels.spec_verify.benchmark.measure import workspace_of

CASE = Case(requests=600, draft_tokens=3, vocabulary=300, acceptance=0.7)


@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("kind", [Kind.SAMPLED, Kind.GREEDY])
def test_drafts_are_accepted_as_often_as_the_case_says(kind: Kind, acceptance: float) -> None:
    case = replace(CASE, kind=kind, acceptance=acceptance)
    accepted = torch.cat([checks.reference(inputs(case, number, "cpu")).accepted for number in range(2)])
    assert accepted.double().mean() == pytest.approx(sum(acceptance**step for step in (1, 2, 3)), abs=0.12)


def test_every_set_of_inputs_has_its_own_logits_seeds_and_positions() -> None:
    first, second = inputs(CASE, 0, "cpu"), inputs(CASE, 1, "cpu")
    assert not torch.equal(first.target_logits, second.target_logits)
    assert set(first.sampling.seed.tolist()).isdisjoint(second.sampling.seed.tolist())
    assert not torch.equal(first.positions, second.positions)


def test_ragged_requests_draft_nothing_up_to_all() -> None:
    case = replace(CASE, kind=Kind.RAGGED, draft_tokens=7)
    assert set(case.lengths) == set(range(8))
    assert inputs(case, 0, "cpu").target_logits.size(0) == sum(case.lengths) + case.requests


def test_the_grid_has_every_batch_size_vocabulary_and_kind_once() -> None:
    cases = list(grid(quick=False))
    assert len(set(cases)) == len(cases) == 2 * 6 + 3 * (2 + 2 + 3)
    assert {case.kind for case in cases} == set(Kind)
    assert set(grid(quick=True)) < set(cases)


def test_all_rows_of_64_requests() -> None:
    case = Case(requests=64, draft_tokens=4, vocabulary=128_256, acceptance=0.7)
    assert case.all_rows_bytes == 64 * 5 * 128_256 * 2


@pytest.mark.parametrize(("accepted", "rows"), [(0, 1), (1, 2), (2, 3)])
def test_bytes_of_a_given_outcome(accepted: int, rows: int) -> None:
    case = Case(requests=1, draft_tokens=2, vocabulary=100, acceptance=0.5)
    assert case.needed_bytes([accepted]) == rows * 200


@pytest.mark.parametrize("kind", [Kind.SAMPLED, Kind.FILTERED])
@pytest.mark.parametrize("vocabulary", [128_256, 151_936])
@pytest.mark.parametrize("gamma", [3, 4, 7])
def test_the_workspace_of_128_requests_stays_below_a_megabyte(kind: Kind, vocabulary: int, gamma: int) -> None:
    case = Case(requests=128, draft_tokens=gamma, vocabulary=vocabulary, acceptance=0.7, kind=kind)
    assert workspace_of(case, "cpu").nbytes < 1e6
