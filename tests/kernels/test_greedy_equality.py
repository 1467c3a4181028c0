"""Greedy requests: kernel, reference and a plain argmax agree exactly, whatever ties, adjustments or dtype."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from slipstream_kernels import verify

from tests.kernels.batches import Request, make_request, verify_batch
from tests.kernels.checker import check
from tests.kernels.oracle import Rules
from tests.kernels.strategies import greedy_batches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def batch(backend, requests, **options):
    return verify_batch(partial(verify, backend=backend), requests, device=DEVICE, **options)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(greedy_batches(), st.integers(0, 2))
def test_the_reference_emits_the_argmax(requests, gap):
    found = batch("reference", requests, gap=gap)
    assert not any(check(request, answer) for request, answer in zip(requests, found, strict=True))


# The interpreter has no time to look for a smaller example.
@settings(
    derandomize=True,
    deadline=None,
    max_examples=500 if DEVICE == "cuda" else 15,
    phases=(Phase.explicit, Phase.generate),
)
@given(greedy_batches(), st.integers(0, 2), st.integers(0, 2))
def test_the_kernel_emits_the_argmax(requests, gap, extra):
    drafted = max(len(request.drafts) for request in requests) + extra
    kernel = batch("kernel", requests, gap=gap, drafted=drafted)
    assert not any(check(request, answer) for request, answer in zip(requests, kernel, strict=True))
    assert kernel == batch("reference", requests, gap=gap, drafted=drafted)


@pytest.mark.parametrize("backend", ["reference", "kernel"])
def test_tokens_that_only_bfloat16_makes_equal_are_a_tie(backend):
    exact = torch.tensor([[1.0, 10.01, 10.02, 10.0, 2.0]])
    assert int(exact.argmax()) == 2
    rounded = exact.to(torch.bfloat16)
    assert int((rounded == rounded.max()).sum()) == 3
    request = Request(logits=rounded, drafts=[], rules=Rules(temperature=0.0))
    (answer,) = batch(backend, [request])
    assert answer.tokens == [1]


@pytest.mark.parametrize("backend", ["reference", "kernel"])
def test_penalties_decide_ties_in_float32_and_not_in_the_logits_type(backend):
    logits = torch.tensor([[10.0, 10.0, 10.0]]).to(torch.bfloat16)
    rules = Rules(temperature=0.0, presence=0.001, prompt=(2,))
    (answer,) = batch(backend, [Request(logits=logits, drafts=[], rules=rules, written=(0,))])
    assert answer.tokens == [1]  # token 2 was never written, only read


@pytest.mark.parametrize("backend", ["reference", "kernel"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_drafted_token_that_is_no_number_fails_a_greedy_request_beside_a_sampled_one(backend, poison, row):
    """Its own row says nothing, so it cannot be the row's best token."""
    sampled = make_request(2, vocabulary=9, drafts=2)
    logits = torch.zeros(3, 9)
    logits[:, 4] = 1.0
    greedy = Request(logits=logits, drafts=[4, 4], rules=Rules(temperature=0.0))
    broken = logits.clone()
    broken[row, 4] = poison
    whole, failed = batch(backend, [greedy, sampled]), batch(backend, [replace(greedy, logits=broken), sampled])
    assert whole[0].tokens == [4, 4, 4]
    assert failed == [None, whole[1]]
