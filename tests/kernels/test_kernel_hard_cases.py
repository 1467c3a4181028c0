"""Where other kernels go wrong, beside what `test_verification` asks of both backends: memory full of garbage, broken
rows beside sound ones."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from slipstream_kernels import verify
from slipstream_kernels.spec_verify.kernel import LaunchConfig, verify_kernel

from tests.kernels.batches import make_request, verify_batch
from tests.kernels.checker import check, decide
from tests.kernels.oracle import Rules

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 4500
SPLIT = LaunchConfig(splits=2)
FILTERS = Rules(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01)
KINDS = (Rules(), Rules(temperature=0.0), FILTERS)


def mixed_batch(*, drafts=2):
    """Two requests for each kind of rules, of unlike lengths."""
    return [
        make_request(
            number + 40, vocabulary=VOCABULARY, drafts=(number + drafts) % (drafts + 1), rules=KINDS[number // 2]
        )
        for number in range(2 * len(KINDS))
    ]


def checked(batch, answers):
    """All answers are right, to the token."""
    assert not any(check(request, answer) for request, answer in zip(batch, answers, strict=True))


@pytest.mark.parametrize("config", [SPLIT, replace(SPLIT, splits=1, lazy=False), replace(SPLIT, warps=8)])
def test_all_kinds_agree_however_rows_are_cut_up(config):
    batch = mixed_batch()
    checked(batch, verify_batch(partial(verify_kernel, config=config), batch, device=DEVICE))


def test_garbage_in_fresh_memory_does_not_matter():
    """Outputs and statistics come from `torch.empty`; here that is NaN and the largest integer."""
    batch = mixed_batch()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(1).isnan()
        answers = verify_batch(partial(verify_kernel, config=SPLIT), batch, device=DEVICE)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled
    checked(batch, answers)


@pytest.mark.parametrize("rules", [Rules(), FILTERS], ids=["plain", "filters"])
def test_nan_behind_a_difference_is_harmless_and_before_it_fatal(rules):
    batch = [make_request(seed, vocabulary=150, drafts=2, rules=rules) for seed in range(12)]
    broken = list(batch)
    for at, request in enumerate(batch):
        if at % 2:
            logits = request.logits.clone()
            logits[at % 3, at] = (math.nan, math.inf)[at % 4 // 2]
            broken[at] = replace(request, logits=logits)
    run = partial(verify_batch, partial(verify, backend="kernel"), device=DEVICE)
    whole, damaged = run(batch), run(broken)
    failed = 0
    for at, (request, answer) in enumerate(zip(broken, damaged, strict=True)):
        assert (answer is None) == (decide(request).tokens is None)
        assert answer is None or answer.tokens == whole[at].tokens
        failed += answer is None
    assert 0 < failed < 6
