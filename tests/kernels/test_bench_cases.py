"""The benchmark's inputs are accepted as often as they say; its predictions are the issue's arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from slipstream_kernels.spec_verify.benchmark import checks, forecast
from slipstream_kernels.spec_verify.benchmark.cases import ACCEPTANCES, Case, Kind, grid, inputs
from slipstream_kernels.spec_verify.benchmark.predictions import needed_bytes, predict, tokens_per_step

CASE = Case(requests=600, draft_tokens=3, vocabulary=300, acceptance=0.7)


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("kind", [Kind.ONE_HOT, Kind.GREEDY, Kind.PROBABILISTIC])
def test_drafts_are_accepted_as_often_as_the_case_says(kind: Kind, acceptance: float) -> None:
    case = replace(CASE, kind=kind, acceptance=acceptance)
    accepted = torch.cat([checks.reference(inputs(case, number, "cpu")).accepted for number in range(2)])
    assert accepted.double().mean() == pytest.approx(tokens_per_step(acceptance, 3) - 1, abs=0.12)


def test_every_set_of_inputs_has_its_own_logits_seeds_and_positions() -> None:
    first, second = inputs(CASE, 0, "cpu"), inputs(CASE, 1, "cpu")
    assert not torch.equal(first.target_logits, second.target_logits)
    assert set(first.sampling.seed.tolist()).isdisjoint(second.sampling.seed.tolist())
    assert not torch.equal(first.positions, second.positions)


def test_ragged_requests_draft_nothing_up_to_all() -> None:
    case = replace(CASE, kind=Kind.RAGGED, draft_tokens=7)
    assert set(case.lengths) == set(range(8))
    assert inputs(case, 0, "cpu").target_logits.size(0) == sum(case.lengths) + case.requests


def test_the_grid_is_the_issues() -> None:
    assert len(list(grid())) == 2 * 6 * 3 * 3


def test_the_floor_of_64_requests() -> None:
    case = Case(requests=64, draft_tokens=4, vocabulary=128_256, acceptance=0.7)
    prediction = predict(case)
    assert prediction.all_rows_bytes == 64 * 5 * 128_256 * 2
    assert prediction.all_rows_us == pytest.approx(17.1, abs=0.01)
    assert prediction.needed_us == pytest.approx(9.48, abs=0.01)


def test_sampled_drafts_add_the_draft_rows_that_are_looked_at() -> None:
    case = Case(requests=1, draft_tokens=2, vocabulary=100, acceptance=0.5, kind=Kind.PROBABILISTIC)
    assert predict(case).all_rows_bytes == (3 + 2) * 200
    assert predict(case).needed_bytes == pytest.approx((1.75 + 1.5) * 200)


@pytest.mark.parametrize(("accepted", "rows"), [(0, 2), (1, 4), (2, 5)])
def test_bytes_of_a_given_outcome(accepted: int, rows: int) -> None:
    case = Case(requests=1, draft_tokens=2, vocabulary=100, acceptance=0.5, kind=Kind.PROBABILISTIC)
    assert needed_bytes(case, [accepted]) == rows * 200


def test_the_forecast_names_every_case_and_keeps_the_workspace_below_a_megabyte() -> None:
    text = forecast.text(simulated=False)
    assert sum(line.startswith("| 1") for line in text.splitlines()) >= 36 + 18
    memory = text[text.index("Predicted memory") :].splitlines()
    sizes = [
        float(cell) for line in memory if line.startswith("| 1") for cell in line.split("|")[4:8] if "| 128 |" in line
    ]
    assert len(sizes) == 24
    assert max(sizes) < 1000
