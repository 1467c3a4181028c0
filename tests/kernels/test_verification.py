"""`verify` against the textbook algorithm, and what must not change its answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_kernels import Purpose, SamplingBatch, Verification, filtered_probs, sample, verify
from slipstream_kernels.reference import verify_one
from slipstream_kernels.verification import accepts
from torch import Tensor

reproducibly = settings(derandomize=True, deadline=None, max_examples=40)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request's part of a batch: `logits` [k + 1, V], `probs` [k, W] or None for a draft that was not sampled."""

    logits: Tensor
    drafts: list[int]
    probs: Tensor | None
    temperature: float
    top_p: float
    top_k: int
    seed: int
    position: int


def make_request(
    number: int, *, vocabulary: int, drafts: int, draft_vocabulary: int | None = None, **changes
) -> Request:
    """A request whose numbers follow from `number`; its draft is the target with noise."""
    generator = torch.Generator().manual_seed(number)
    logits = 2 * torch.randn(drafts + 1, vocabulary, generator=generator)
    noisy = logits[:-1, :draft_vocabulary] + torch.randn(drafts, draft_vocabulary or vocabulary, generator=generator)
    request = Request(
        logits=logits, drafts=[], probs=None, temperature=1.0, top_p=1.0, top_k=0, seed=number, position=number % 7
    )
    request = replace(request, **changes)
    temperature, top_p, top_k = ([value] * drafts for value in (request.temperature, request.top_p, request.top_k))
    sampling = SamplingBatch.of(temperature, top_p, top_k, [request.seed] * drafts)
    ids, _ = sample(noisy, sampling, request.position + torch.arange(drafts), Purpose.DRAFT)
    return replace(request, drafts=ids.tolist(), probs=filtered_probs(noisy, sampling))


def verify_batch(requests: list[Request], *, drafted: int | None = None, gap: int = 0) -> Verification:
    """One call for all of `requests`. Everything that no request owns is poisoned: `gap` rows before each request,
    drafted ids and probabilities beyond a request's draft length."""
    drafted = max(len(request.drafts) for request in requests) if drafted is None else drafted
    vocabulary, dtype = requests[0].logits.size(1), requests[0].logits.dtype
    width = max((request.probs.size(1) for request in requests if request.probs is not None), default=vocabulary)
    ids = torch.full((len(requests), drafted), 10**12)
    probs = torch.full((len(requests), drafted, width), math.nan)
    rows, starts = [], []
    for i, request in enumerate(requests):
        rows.append(torch.full((gap, vocabulary), math.nan, dtype=dtype))
        starts.append(sum(len(block) for block in rows))
        rows.append(request.logits)
        ids[i, : len(request.drafts)] = torch.tensor(request.drafts, dtype=torch.int64)
        if request.probs is not None:
            probs[i, : len(request.drafts)] = request.probs
    onehot = torch.tensor([request.probs is None for request in requests])
    columns = zip(*((r.temperature, r.top_p, r.top_k, r.seed) for r in requests), strict=True)
    return verify(
        torch.cat(rows),
        ids,
        torch.tensor([len(request.drafts) for request in requests]),
        None if bool(onehot.all()) else probs,
        SamplingBatch.of(*columns),
        torch.tensor([request.position for request in requests]),
        row_start=torch.tensor(starts) if gap else None,
        draft_onehot=onehot if bool(onehot.any()) else None,
    )


def emitted(result: Verification) -> list[list[int]]:
    """The tokens of each request, after checking the three tensors against each other."""
    assert torch.equal(result.lengths, result.accepted + 1)
    rows = result.token_ids.tolist()
    tokens = [row[:length] for row, length in zip(rows, result.lengths.tolist(), strict=True)]
    assert rows == [kept + [-1] * (len(row) - len(kept)) for kept, row in zip(tokens, rows, strict=True)]
    return tokens


def textbook(request: Request) -> list[int]:
    probs = request.probs
    if probs is not None:
        probs = torch.nn.functional.pad(probs, (0, request.logits.size(1) - probs.size(1)))
    return verify_one(
        request.logits,
        request.drafts,
        probs,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        position=request.position,
    )


@st.composite
def batches(draw: st.DrawFn) -> list[Request]:
    vocabulary = draw(st.integers(2, 12))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    draft_vocabulary = draw(st.integers(1, vocabulary))
    requests = []
    for number in draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=6)):
        request = make_request(
            number,
            vocabulary=vocabulary,
            drafts=draw(st.integers(0, 5)),
            draft_vocabulary=draft_vocabulary,
            temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
            top_p=draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
            top_k=draw(st.sampled_from([0, 1, 3, 50])),
        )
        request = replace(request, logits=request.logits.to(dtype))
        requests.append(replace(request, probs=None) if draw(st.booleans()) else request)
    return requests


@reproducibly
@given(batches(), st.integers(0, 2), st.integers(0, 2))
def test_ragged_batches_emit_what_the_textbook_algorithm_emits(requests, gap, extra):
    longest = max(len(request.drafts) for request in requests)
    result = verify_batch(requests, drafted=longest + extra, gap=gap)
    assert result.token_ids.shape == (len(requests), longest + extra + 1)
    assert emitted(result) == [textbook(request) for request in requests]


@reproducibly
@given(batches(), st.randoms(use_true_random=False))
def test_a_request_does_not_notice_its_slot_or_its_neighbours(requests, random):
    together = emitted(verify_batch(requests))
    order = list(range(len(requests)))
    random.shuffle(order)
    assert emitted(verify_batch([requests[i] for i in order])) == [together[i] for i in order]
    assert [emitted(verify_batch([request]))[0] for request in requests] == together


def test_neighbours_do_not_matter_at_a_real_vocabulary_size():
    requests = [
        make_request(i, vocabulary=3001, drafts=i % 5, temperature=(i % 3) / 2, top_p=1 - (i % 2) / 10)
        for i in range(12)
    ]
    together = emitted(verify_batch(requests, gap=1))
    assert [emitted(verify_batch([request]))[0] for request in requests] == together
    assert emitted(verify_batch(requests, gap=1)) == together


@reproducibly
@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 5)), min_size=1, max_size=6))
def test_greedy_requests_emit_the_targets_argmax_with_or_without_sampled_neighbours(numbers):
    greedy = [make_request(number, vocabulary=9, drafts=k, temperature=0.0) for number, k in numbers]
    best = [request.logits.argmax(-1).tolist() for request in greedy]
    tokens = emitted(verify_batch([replace(request, probs=None) for request in greedy]))
    assert all(chosen[: len(kept)] == kept for kept, chosen in zip(tokens, best, strict=True))
    for kept, chosen, request in zip(tokens, best, greedy, strict=True):
        agreed = next((j for j, x in enumerate(request.drafts) if x != chosen[j]), len(request.drafts))
        assert len(kept) == agreed + 1
    sampled = make_request(1, vocabulary=9, drafts=3)
    assert emitted(verify_batch([*greedy, sampled]))[:-1] == tokens


@reproducibly
@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_plain_step_emits_what_sample_draws_for_the_target(number, position):
    request = make_request(number, vocabulary=11, drafts=0, position=position, top_p=0.9)
    ids, _ = sample(
        request.logits, SamplingBatch.of([1.0], [0.9], [0], [number]), torch.tensor([position]), Purpose.TARGET
    )
    # Alone, and beside a request with drafts.
    assert emitted(verify_batch([request])) == [ids.tolist()]
    assert emitted(verify_batch([request, make_request(5, vocabulary=11, drafts=3)]))[0] == ids.tolist()


def test_inputs_are_never_written():
    requests = [make_request(i, vocabulary=8, drafts=3) for i in range(4)]
    for temperature in (0.0, 1.0):
        sampling = SamplingBatch.of([temperature] * 4, [0.9] * 4, [3] * 4, range(4))
        tensors = [torch.cat([r.logits for r in requests]), torch.tensor([r.drafts for r in requests])]
        tensors += [torch.full((4,), 3), torch.stack([r.probs for r in requests if r.probs is not None])]
        tensors += [torch.arange(4), torch.arange(4) * 4, torch.tensor([True, False, True, False])]
        logits, ids, lengths, probs, positions, row_start, onehot = tensors
        before = [tensor.clone() for tensor in tensors]
        result = verify(logits, ids, lengths, probs, sampling, positions, row_start=row_start, draft_onehot=onehot)
        for output in result:
            output.fill_(-7)
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_an_empty_batch_has_an_empty_answer():
    for temperature_flags in ([], [1.0]):
        nobody = SamplingBatch.of(*([[]] * 4)) if not temperature_flags else SamplingBatch.of([1.0], [1.0], [0], [0])
        nobody = nobody.rows(torch.zeros(0, dtype=torch.int64))
        none = torch.zeros(0, dtype=torch.int64)
        result = verify(torch.zeros(0, 5), torch.zeros(0, 3, dtype=torch.int64), none, None, nobody, none)
        assert result.token_ids.shape == (0, 4)


# --- losslessness at the edges -------------------------------------------------------------------------------


def test_a_number_of_exactly_zero_does_not_accept_what_the_target_never_chooses():
    zero = torch.zeros(1, dtype=torch.float64)
    p, q = torch.tensor([0.0, 0.0, 1e-30, 0.5]), torch.tensor([0.5, 0.0, 0.0, 1.0])
    assert accepts(zero, p, q).tolist() == [False, False, True, True]
    almost_one = zero + 1 - 2**-52
    assert accepts(almost_one, torch.tensor([0.5, 1.0, 0.3]), torch.tensor([0.5, 1.0, 0.2])).tolist() == [True] * 3


@pytest.mark.parametrize("seed", range(20))
def test_a_draft_equal_to_the_target_is_always_accepted(seed):
    request = make_request(seed, vocabulary=8, drafts=4)
    sampling = SamplingBatch.of([1.0] * 4, [1.0] * 4, [0] * 4, [seed] * 4)
    ids, probs = sample(request.logits[:-1], sampling, request.position + torch.arange(4), Purpose.DRAFT)
    equal = replace(request, drafts=ids.tolist(), probs=probs)
    assert emitted(verify_batch([equal]))[0][:-1] == equal.drafts


@pytest.mark.parametrize("sampled", [True, False])
def test_without_residual_mass_the_token_comes_from_the_target(sampled):
    # The drafted token is outside the target's support and q covers p, which only a wrong draft can bring about.
    logits = torch.tensor([[0.0, 0.0, -math.inf, -math.inf]] * 2)
    drafts = {"drafts": [3], "probs": torch.tensor([[1.0, 1.0, 0.0, 1.0]]) if sampled else None}
    seen = set()
    for seed in range(30):
        request = replace(make_request(seed, vocabulary=4, drafts=1), logits=logits, **drafts)
        tokens = emitted(verify_batch([request]))[0]
        assert len(tokens) == 1
        seen.add(tokens[0])
    assert seen == {0, 1}


def test_a_one_hot_target_accepts_its_token_and_corrects_any_other():
    logits = torch.tensor([[-1e4, 1e4, -1e4]] * 2)
    for probs in (None, torch.tensor([[0.2, 0.6, 0.2]])):
        for drafted, expected in ((1, [1, 1]), (0, [1]), (2, [1])):
            request = replace(make_request(3, vocabulary=3, drafts=1), logits=logits, drafts=[drafted], probs=probs)
            assert emitted(verify_batch([request])) == [expected]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [-1, -(2**62), 5, 6, 2**62])
def test_drafted_ids_that_the_target_does_not_have_are_rejected(bad, temperature):
    for probs in (None, torch.full((2, 9), 1 / 9)):
        request = make_request(1, vocabulary=5, drafts=2, temperature=temperature)
        tokens = emitted(verify_batch([replace(request, drafts=[bad, 0], probs=probs)]))[0]
        assert len(tokens) == 1
        assert 0 <= tokens[0] < 5


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_broken_target_rows_and_draft_rows_still_give_valid_ids(value, temperature):
    for seed in range(10):
        request = make_request(seed, vocabulary=6, drafts=3, temperature=temperature, top_p=0.9, top_k=4)
        broken = request.logits.clone()
        broken[seed % 4] = value
        probs = torch.full_like(request.probs, value) if request.probs is not None else None
        for changes in ({"logits": broken}, {"logits": broken, "probs": None}, {"probs": probs}):
            tokens = emitted(verify_batch([replace(request, **changes), request]))
            assert all(0 <= token < 6 for token in tokens[0])
            assert tokens[1] == emitted(verify_batch([request]))[0]


def test_a_row_of_nothing_but_nan_gives_token_zero():
    for temperature in (0.0, 1.0):
        request = make_request(2, vocabulary=6, drafts=0, temperature=temperature)
        assert emitted(verify_batch([replace(request, logits=request.logits * math.nan)])) == [[0]]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"target_logits": torch.zeros(3)}, "target_logits"),
        ({"draft_token_ids": torch.zeros(3, 1, dtype=torch.int64)}, "draft_token_ids"),
        ({"draft_lengths": torch.zeros(1, dtype=torch.int64)}, "draft_lengths"),
        ({"positions": torch.zeros(2, 1, dtype=torch.int64)}, "positions"),
        ({"draft_probs": torch.zeros(2, 2, 4)}, "draft_probs"),
    ],
)
def test_shapes_that_do_not_fit_are_named(changes, name):
    fitting = {
        "target_logits": torch.zeros(4, 4),
        "draft_token_ids": torch.zeros(2, 1, dtype=torch.int64),
        "draft_lengths": torch.ones(2, dtype=torch.int64),
        "draft_probs": None,
        "sampling": SamplingBatch.of([1.0] * 2, [1.0] * 2, [0] * 2, [0] * 2),
        "positions": torch.zeros(2, dtype=torch.int64),
    }
    assert verify(**fitting).lengths.shape == (2,)
    with pytest.raises(ValueError, match=name):
        verify(**(fitting | changes))
