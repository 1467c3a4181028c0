"""The launch that reads the logits: the same answer however they are cut up and whoever comes first, and nothing left
behind."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from slipstream_kernels import LogitAdjustments, SamplingBatch, Verification, verify
from slipstream_kernels.spec_verify.kernel import LaunchConfig, prepare, scan_call, verify_kernel
from slipstream_kernels.spec_verify.kernel_memory import new_statistics
from torch import Tensor

from tests.kernels.interpreter import programs_in_random_order

WHOLE = LaunchConfig(splits=1)
"""One program per row."""
THREE_TILES = 9000


def make_batch(
    *,
    seed: int,
    vocabulary: int = 300,
    requests: int = 6,
    drafts: int = 3,
    dtype: torch.dtype = torch.bfloat16,
    agreement: float = 0.7,
    device: str = "cpu",
) -> dict[str, Any]:
    """Arguments of `verify`: a third of the requests is greedy, drafts are the target's favourite with `agreement`."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, drafts + 1, (requests,), generator=generator)
    starts = (lengths + 1).cumsum(0) - lengths - 1
    logits = (2 * torch.randn(int((lengths + 1).sum()), vocabulary, generator=generator)).to(dtype)
    ids = torch.randint(0, vocabulary, (requests, drafts), generator=generator)
    if drafts:
        rows = (starts[:, None] + torch.arange(drafts)).clamp(max=len(logits) - 1)
        agree = torch.rand(requests, drafts, generator=generator) < agreement
        ids = torch.where(agree, logits[rows].float().argmax(-1), ids)
    heat = [(0.0, 0.7, 1.3)[i % 3] for i in range(requests)]
    sampling = SamplingBatch.of(heat, [1.0] * requests, [0] * requests, range(seed, seed + requests), device)
    return {
        "target_logits": logits.to(device),
        "draft_token_ids": ids.to(device),
        "draft_lengths": lengths.to(device),
        "sampling": sampling,
        "positions": (torch.arange(requests) * 1000).to(device),
    }


def assert_same(one: Verification, other: Verification) -> None:
    for name in ("token_ids", "accepted", "lengths"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("vocabulary", [1, 7, 64, 300, 4096, 4097])
def test_agrees_with_the_reference_whatever_the_vocabulary(vocabulary: int, dtype: torch.dtype, device: str) -> None:
    for seed in range(3):
        batch = make_batch(seed=seed, vocabulary=vocabulary, dtype=dtype, device=device)
        expected = verify(**batch, backend="reference")
        assert_same(verify_kernel(**batch, config=WHOLE), expected)


@pytest.mark.parametrize(("requests", "drafts"), [(1, 0), (1, 1), (1, 7), (4, 0), (40, 1), (2, 40)])
def test_agrees_with_the_reference_whatever_the_batch(requests: int, drafts: int, device: str) -> None:
    batch = make_batch(seed=requests, requests=requests, drafts=drafts, agreement=0.9, vocabulary=4500, device=device)
    config = replace(WHOLE, splits=2)
    expected = verify(**batch, backend="reference")
    assert_same(verify_kernel(**batch, config=config), expected)


def test_a_configuration_with_more_programs_than_tiles_is_refused() -> None:
    with pytest.raises(ValueError, match=r"config.splits = 4: must be in 1..3"):
        verify_kernel(**make_batch(seed=0, vocabulary=THREE_TILES), config=replace(WHOLE, splits=4))


def test_no_requests_are_no_launch(device: str) -> None:
    batch = make_batch(seed=0, requests=1, device=device)
    empty = {name: value[:0] for name, value in batch.items() if isinstance(value, Tensor)}
    result = verify_kernel(**(batch | empty | {"sampling": SamplingBatch.of([], [], [], [], device)}))
    assert result.token_ids.shape == (0, 4)


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("splits", [1, 2, 3])
def test_the_answer_does_not_depend_on_splits_or_early_exit(splits: int, lazy: bool, device: str) -> None:
    batch = make_batch(seed=5, vocabulary=THREE_TILES, agreement=0.5, device=device)
    expected = verify_kernel(**batch, config=WHOLE)
    config = replace(WHOLE, splits=splits, lazy=lazy)
    assert_same(verify_kernel(**batch, config=config), expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's order is what is changed")
@pytest.mark.parametrize("seed", range(4))
def test_the_answer_does_not_depend_on_which_program_comes_first(seed: int) -> None:
    batch = make_batch(seed=seed, vocabulary=THREE_TILES, requests=3, drafts=2, agreement=0.6)
    batch["target_logits"][seed] = math.nan
    expected = verify_kernel(**batch, config=replace(WHOLE, lazy=False))
    for order, splits in enumerate((1, 3, 3)):
        with programs_in_random_order(100 * seed + order):
            config = replace(WHOLE, splits=splits)
            result = verify_kernel(**batch, config=config)
        assert_same(result, expected)


def test_rows_behind_a_difference_are_not_read(device: str) -> None:
    batch = make_batch(seed=1, requests=3, drafts=3, device=device)
    batch["draft_lengths"] = torch.full((3,), 3, device=device)
    batch["target_logits"] = torch.zeros(12, 300, device=device)
    batch["target_logits"][0::4, 7] = 100.0
    batch["draft_token_ids"][:] = 9  # has no chance
    if device == "cpu":  # in order, one program after the other: what is left out is known
        launch = prepare(**batch, config=WHOLE)
        tile_max = launch.statistics.tile_max.fill_(math.nan)
        scan_call(launch).launch()
        assert not tile_max.view(3, 4, -1)[:, 0].isnan().any()
        assert tile_max.view(3, 4, -1)[:, 1:].isnan().all()
    result = verify_kernel(**batch, config=WHOLE)
    assert result.token_ids.tolist() == [[7, -1, -1, -1]] * 3


def test_inputs_are_not_written(device: str) -> None:
    batch = make_batch(seed=2, device=device)
    bias = [{3: 1.5}] * 6
    before = {name: value.clone() for name, value in batch.items() if isinstance(value, Tensor)}
    verify_kernel(**batch, adjustments=LogitAdjustments.of(300, bias=bias, device=device), config=WHOLE)
    for name, value in before.items():
        assert torch.equal(batch[name], value), name


def test_a_megabyte_is_enough_for_128_requests() -> None:
    for filters, limit in (False, 330_000), (True, 2**20):
        memory = new_statistics(requests=128, draft_count=7, tiles=38, filters=filters, device=torch.device("cpu"))
        assert sum(part.nbytes for part in memory if part is not None) <= limit


@pytest.mark.parametrize("stray", [-1, 300, 2**40, -(2**40)])
def test_a_drafted_token_outside_the_vocabulary_is_not_accepted(stray: int, device: str) -> None:
    batch = make_batch(seed=3, requests=3, agreement=1.0, device=device)
    batch["draft_lengths"] = torch.full((3,), 2, device=device)
    batch["target_logits"] = batch["target_logits"][:1].repeat(9, 1)
    batch["draft_token_ids"][:, 0] = stray
    expected = verify(**batch, backend="reference")
    result = verify_kernel(**batch, config=WHOLE)
    assert result.accepted.tolist() == [0, 0, 0]
    assert_same(result, expected)


def test_greedy_ties_go_to_the_lowest_id_within_and_across_tiles(device: str) -> None:
    logits = torch.zeros(8, THREE_TILES, device=device)
    ties = [(5, 200), (5, 5000), (130, 131), (4130, 8999), (0, 8999), (8999,), (63, 64), (63, 64)]
    for row, best in enumerate(ties):
        logits[row, list(best)] = 4.0
    drafted = [5, 5000, 130, 8999, 0, 8999, 64, 63]
    batch = {
        "target_logits": logits.repeat_interleave(2, 0).to(torch.bfloat16),
        "draft_token_ids": torch.tensor(drafted, device=device)[:, None],
        "draft_lengths": torch.ones(8, dtype=torch.int64, device=device),
        "sampling": SamplingBatch.of([0.0] * 8, [1.0] * 8, [0] * 8, [0] * 8, device),
        "positions": torch.zeros(8, dtype=torch.int64, device=device),
    }
    result = verify_kernel(**batch, config=WHOLE)
    firsts = [5, 5, 130, 4130, 0, 8999, 63, 63]
    assert result.token_ids[:, 0].tolist() == firsts
    assert result.accepted.tolist() == [int(a == b) for a, b in zip(firsts, drafted, strict=True)]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["row", "drafted", "other"])
def test_a_broken_row_fails_its_request_and_no_other(poison: float, where: str, device: str) -> None:
    batch = make_batch(seed=11, requests=5, drafts=2, agreement=1.0, device=device)
    batch["draft_lengths"] = torch.full((5,), 2, device=device)
    batch["target_logits"] = batch["target_logits"][:1].repeat(15, 1)
    batch["draft_token_ids"][:] = int(batch["target_logits"][0].float().argmax())
    healthy = verify_kernel(**batch, config=WHOLE)
    for row in (0, 7, 14):  # of requests 0, 2 and 4, greedy and not
        broken = batch["target_logits"][row]
        columns = {"row": slice(None), "drafted": batch["draft_token_ids"][0, 0], "other": 299}[where]
        broken[columns] = poison
    expected = verify(**batch, backend="reference")
    result = verify_kernel(**batch, config=WHOLE)
    assert_same(result, expected)
    for request in (1, 3):
        assert torch.equal(result.token_ids[request], healthy.token_ids[request])
    if where == "row" or poison != -math.inf:
        assert result.accepted[0] == -1


def test_everything_that_adjusts_logits_is_applied_on_the_load(device: str) -> None:
    for seed in range(3):
        batch = make_batch(seed=seed, requests=4, device=device, dtype=torch.float32)
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(0, 300, (4, 40), generator=generator).tolist()
        allowed = [set(range(0, 300, 2)) if i % 2 else None for i in range(len(batch["target_logits"]))]
        adjustments = LogitAdjustments.of(
            300,
            bias=[{int(token): 0.3 * i - 2 for i, token in enumerate(set(words[i][:9]))} for i in range(4)],
            prompts=[part[:20] for part in words],
            outputs=[part[15:] for part in words],
            repetition=[1.2, 0.9, 1.0, 1.5],
            frequency=[0.1, 0.0, -0.2, 0.3],
            presence=[0.5, 0.1, 0.0, -0.1],
            allowed=allowed,
            device=device,
        )
        expected = verify(**batch, adjustments=adjustments, backend="reference")
        assert_same(
            verify_kernel(**batch, adjustments=adjustments, config=WHOLE),
            expected,
        )


def test_rows_may_lie_anywhere_and_far_apart(device: str) -> None:
    batch = make_batch(seed=8, requests=4, drafts=2, device=device)
    rows, vocabulary = batch["target_logits"].shape
    wide = torch.full((rows + 6, vocabulary + 21), math.nan, dtype=torch.bfloat16, device=device)
    wide[3 : rows + 3, :vocabulary] = batch["target_logits"]
    packed = (batch["draft_lengths"] + 1).cumsum(0) - batch["draft_lengths"] - 1
    moved = batch | {"target_logits": wide[:, :vocabulary], "row_start": packed + 3}
    assert_same(verify_kernel(**moved, config=WHOLE), verify_kernel(**batch, config=WHOLE))
