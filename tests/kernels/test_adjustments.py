"""Logit adjustments: built from Python values, and applied as the float32 oracle applies them, to the bit."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_kernels import LogitAdjustments
from slipstream_kernels.adjustments import adjusted

from tests.kernels import oracle
from tests.kernels.batches import adjustments_of, make_request, sampling_of, verify_batch
from tests.kernels.checker import check
from tests.kernels.oracle import Rules

VOCABULARY = 70
ADJUSTED = Rules(bias={3: 1.5, 69: -math.inf}, repetition=1.3, frequency=0.4, presence=0.2, prompt=(1, 5, 5))

strengths = st.sampled_from([-0.7, 0.0, 0.3, 1.1])


@st.composite
def adjusted_requests(draw: st.DrawFn):
    """Requests whose few tokens come up again and again."""
    tokens = st.lists(st.integers(0, 5), max_size=6)
    requests = []
    for number in draw(st.lists(st.integers(0, 2**32), min_size=1, max_size=4)):
        rules = Rules(
            bias=draw(st.dictionaries(st.integers(0, 5), st.sampled_from([-math.inf, -2.0, 0.1]), max_size=3)),
            repetition=draw(st.sampled_from([0.5, 1.0, 1.7])),
            frequency=draw(strengths),
            presence=draw(strengths),
            prompt=tuple(draw(tokens)),
        )
        drafts = draw(st.integers(0, 4))
        generator = torch.Generator().manual_seed(number)
        request = make_request(number, vocabulary=6, drafts=drafts, rules=rules, written=tuple(draw(tokens)))
        allowed = torch.rand(drafts + 1, 6, generator=generator) < 0.6 if draw(st.booleans()) else None
        requests.append((request, allowed))
    return requests


@settings(derandomize=True, deadline=None, max_examples=60)
@given(adjusted_requests(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_every_row_counts_the_drafts_before_it(pairs, dtype):
    requests = [r if allowed is None else type(r)(**{**vars(r), "allowed": allowed}) for r, allowed in pairs]
    lengths = torch.tensor([len(r.drafts) for r in requests])
    most = int(lengths.max())
    ids = torch.full((len(requests), most), 10**12)
    for i, request in enumerate(requests):
        ids[i, : len(request.drafts)] = torch.tensor(request.drafts, dtype=torch.int64)
    starts = (lengths + 1).cumsum(0) - lengths - 1
    rows = starts[:, None] + torch.minimum(torch.arange(most + 1), lengths[:, None])
    logits = torch.cat([request.logits for request in requests]).to(dtype)
    adjustments = adjustments_of(requests, "cpu") or LogitAdjustments()
    before = logits.clone()
    result = adjusted(logits, adjustments, rows, ids)
    assert torch.equal(logits, before)
    for request, start in zip(requests, starts.tolist(), strict=True):
        for step in range(len(request.drafts) + 1):
            allowed = None if request.allowed is None else request.allowed[step].numpy()
            output = (*request.written, *request.drafts[:step])
            row = logits[start + step].float().numpy()
            expected = oracle.adjusted(row, request.rules, output, allowed)
            np.testing.assert_array_equal(result[start + step].numpy(), expected)


def test_a_penalty_makes_a_drafted_token_less_likely_in_the_next_row():
    logits = torch.tensor([[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]])
    adjustments = LogitAdjustments.of(2, frequency=[0.5], presence=[0.25], repetition=[2.0])
    result = adjusted(logits, adjustments, torch.tensor([[0, 1, 2]]), torch.tensor([[1, 1]]))
    assert result.tolist() == [[2.0, 2.0], [2.0, 0.25], [2.0, -0.25]]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_neighbours_adjustments_do_not_matter(verify_backend, device, temperature):
    rules = Rules(**{**vars(ADJUSTED), "temperature": temperature})
    plain = make_request(1, vocabulary=VOCABULARY, drafts=2, rules=Rules(temperature=temperature))
    heavy = make_request(2, vocabulary=VOCABULARY, drafts=3, rules=rules, written=(4, 4, 9))
    other = make_request(3, vocabulary=VOCABULARY, drafts=0, rules=rules)
    together = verify_batch(verify_backend, [plain, heavy, other], device=device, gap=1)
    for request, answer in zip([plain, heavy, other], together, strict=True):
        check(request, answer)
        assert verify_batch(verify_backend, [request], device=device)[0].tokens == answer.tokens


def test_what_is_off_changes_nothing(verify_backend, device):
    request = make_request(4, vocabulary=VOCABULARY, drafts=3)
    off = LogitAdjustments.of(
        VOCABULARY,
        bias=[{}],
        prompts=[[1, 2]],
        outputs=[request.drafts],
        repetition=[1.0],
        allowed=[None] * 4,
        device=device,
    )
    plain = verify_batch(verify_backend, [request], device=device)
    arguments = (request.logits, torch.tensor([request.drafts]), torch.tensor([3]))
    sampled = verify_backend(
        *(tensor.to(device) for tensor in arguments),
        sampling_of([request], device),
        torch.tensor([request.position], device=device),
        adjustments=off,
    )
    assert sampled.token_ids[0, : sampled.lengths[0]].tolist() == plain[0].tokens


def test_of_counts_and_sorts_what_was_seen():
    made = LogitAdjustments.of(
        VOCABULARY, bias=[{}, {9: 1.0, 2: -1.0}], prompts=[[5, 1, 5], []], outputs=[[7, 1, 1], []], presence=[0.5, 0.0]
    )
    assert made.bias_offsets.tolist() == [0, 0, 2]
    assert (made.bias_ids.tolist(), made.bias_values.tolist()) == ([2, 9], [-1.0, 1.0])
    assert made.seen_offsets.tolist() == [0, 3, 3]
    assert (made.seen_ids.tolist(), made.seen_counts.tolist()) == ([1, 5, 7], [2, 0, 1])
    assert (made.repetition.tolist(), made.frequency.tolist()) == ([1.0, 1.0], [0.0, 0.0])
    assert made.bitmask is None
    assert LogitAdjustments.of(VOCABULARY) == LogitAdjustments()


def test_the_mask_has_one_bit_for_each_token():
    mask = LogitAdjustments.of(65, allowed=[[0, 31, 33, 64], None, []]).bitmask
    assert mask.dtype == torch.int32
    assert mask[:, :2].tolist() == [[1 - 2**31, 2], [-1, -1], [0, 0]]
    assert (mask[:, 2] & 1).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bias": [{}, {70: 1.0}]}, "bias[1] has token 70: the vocabulary has 70 tokens"),
        ({"bias": [{-1: 1.0}]}, "bias[0] has token -1: "),
        ({"bias": [{4: math.nan}]}, "bias[0][4] = nan: must be"),
        ({"bias": [{4: math.inf}]}, "bias[0][4] = inf: must be"),
        ({"repetition": [1.0, 0.0]}, "repetition[1] = 0.0: must be a finite number above 0"),
        ({"repetition": [math.nan]}, "repetition[0] = nan: "),
        ({"frequency": [math.nan]}, "frequency[0] = nan: must be a finite number"),
        ({"presence": [-math.inf]}, "presence[0] = -inf: must be a finite number"),
        ({"presence": [0.1], "frequency": [0.1, 0.2]}, "presence has 1 requests, frequency has 2"),
        ({"presence": [0.1], "outputs": [[1], [2]]}, "outputs has 2 requests, presence has 1"),
        ({"presence": [0.1], "outputs": [[1, 70]]}, "outputs[0] has token 70: "),
        ({"presence": [0.1], "prompts": [[-5]]}, "prompts[0] has token -5: "),
        ({"bias": [{4: 1e300}]}, "bias[0][4] = 1e+300: must be a number below infinity that float32 holds"),
        ({"bias": [{4: -(10**400)}]}, "must be a number that float32 holds"),
        ({"bias": [{4: None}]}, "bias[0][4] = None: must be a number"),
        ({"bias": [None]}, "bias[0] = None: must be a mapping"),
        ({"bias": [{1.5: 1.0}]}, "bias[0][0] = 1.5: must be an integer"),
        ({"repetition": [1e-300]}, "repetition[0] = 1e-300: must be a finite number above 0 that float32 holds"),
        ({"frequency": [0.0, 1e300]}, "frequency[1] = 1e+300: must be a finite number that float32 holds"),
        ({"presence": ["a"]}, "presence[0] = 'a': must be a number"),
        ({"presence": 0.1}, "presence = 0.1: must be a sequence"),
        ({"presence": [0.1], "prompts": [[1, 2.5]]}, "prompts[0][1] = 2.5: must be an integer"),
        ({"presence": [0.1], "outputs": [torch.tensor([1, 1])]}, "outputs[0][0] = tensor(1): must be an integer"),
        ({"allowed": [[1.5]]}, "allowed[0][0] = 1.5: must be an integer"),
        ({"bias": [{}], "repetition": [1.0, 1.0]}, "repetition has 2 requests, bias has 1"),
        ({"bias": [{}, {}], "outputs": [[1]]}, "outputs has 1 requests, bias has 2"),
        ({"allowed": [None, [70]]}, "allowed[1] has token 70: the vocabulary has 70 tokens"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        LogitAdjustments.of(VOCABULARY, **values)


@pytest.mark.parametrize("vocabulary", [0, -1, 5.5, None])
def test_a_vocabulary_has_tokens(vocabulary):
    with pytest.raises(ValueError, match=f"vocabulary = {vocabulary}: must be"):
        LogitAdjustments.of(vocabulary, bias=[{}])


def test_an_empty_batch_has_a_mask_without_rows():
    assert LogitAdjustments.of(65, allowed=[]).bitmask.shape == (0, 3)


def test_the_largest_and_smallest_values_that_float32_holds_are_taken():
    largest, smallest = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
    made = LogitAdjustments.of(5, bias=[{1: -largest, 2: -math.inf}] * 2, repetition=[smallest, np.float32(largest)])
    assert made.bias_values.tolist() == [-largest, -math.inf] * 2
    assert made.repetition.tolist() == [smallest, largest]
