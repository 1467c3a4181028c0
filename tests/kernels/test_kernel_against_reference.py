"""Sampled requests: the kernel and the reference emit what the rule emits in float64, except where two tokens are
within rounding of each other; reports, options and sizes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from slipstream_kernels import verify

from tests.kernels.batches import make_request, verify_batch
from tests.kernels.checker import check
from tests.kernels.oracle import Rules
from tests.kernels.strategies import sampled_batches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXAMPLES = 1000 if DEVICE == "cuda" else 20
TEMPERATURES = (0.0, 0.05, 0.7, 1.0, 3.0)
VOCABULARY = 71

RARE = 0.002
"""The share of requests that may get another token than in float64: two tokens lie within rounding (1e-5) of each other
less often than that."""

counted: Counter[str] = Counter()


@pytest.fixture(autouse=True, scope="module")
def hardly_any_exemptions():
    """After the tests: how often one was needed."""
    yield
    for name in counted:
        exempt = counted[f"{name}, exempt"]
        assert name.endswith("exempt") or exempt <= RARE * counted[name] + 1, counted


def checked(backend, requests, *, kind="generated", **options):
    """The answers, each found right; how often only within rounding is counted."""
    answers = verify_batch(partial(verify, backend=backend), requests, device=DEVICE, **options)
    for request, answer in zip(requests, answers, strict=True):
        counted[f"{kind} {backend}, exempt"] += check(request, answer)
        counted[f"{kind} {backend}"] += 1
    return answers


batches = sampled_batches(vocabulary=VOCABULARY, temperatures=TEMPERATURES)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(batches, st.integers(0, 2))
def test_the_reference_emits_what_the_rule_emits(requests, gap):
    checked("reference", requests, gap=gap)


@settings(derandomize=True, deadline=None, max_examples=EXAMPLES, phases=(Phase.explicit, Phase.generate))
@given(requests=batches, gap=st.integers(0, 1), extra=st.integers(0, 1))
def test_the_kernel_emits_what_the_rule_emits(requests, gap, extra):
    drafted = max(len(request.drafts) for request in requests) + extra
    checked("kernel", requests, gap=gap, drafted=drafted)


@pytest.mark.parametrize("backend", ["reference", "kernel"])
@pytest.mark.parametrize("vocabulary", [64, 65, 4095, 4096, 4097, 9001])
@pytest.mark.parametrize("rules", [Rules(), Rules(temperature=0.8, top_k=40, top_p=0.95, min_p=0.02)])
def test_every_digit_of_a_token_is_drawn(backend, vocabulary, rules):
    requests = [
        make_request(number, vocabulary=vocabulary, drafts=number % 3, dtype=torch.bfloat16, rules=rules)
        for number in range(1, 7)
    ]
    checked(backend, requests)


@pytest.mark.skipif(DEVICE != "cuda", reason="the sizes of real models, which the interpreter has no time for")
@pytest.mark.parametrize("vocabulary", [128_256, 151_936, 152_064])
@pytest.mark.parametrize("rules", [Rules(), Rules(top_k=50, top_p=0.95)])
def test_real_vocabularies(vocabulary, rules):
    requests = [
        make_request(number, vocabulary=vocabulary, drafts=number % 9, dtype=torch.bfloat16, rules=rules)
        for number in range(64)
    ]
    checked("kernel", requests, kind="real sizes")
