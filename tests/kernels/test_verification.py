"""`verify` on both backends: what must not change an answer, and the cases at the edge.

What it emits is compared with the float64 rule by `check`; generated batches of all kinds are in
`test_kernel_against_reference.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from slipstream_kernels import SamplingBatch

from tests.kernels.batches import make_request, verify_batch
from tests.kernels.checker import check
from tests.kernels.oracle import Rules

GREEDY = Rules(temperature=0.0)
INF, NAN = math.inf, math.nan


def checked(verify_backend, device, requests, **options):
    """The answers, each found right by the float64 rule."""
    answers = verify_batch(verify_backend, requests, device=device, **options)
    for request, answer in zip(requests, answers, strict=True):
        check(request, answer)
    return answers


def tokens_of(answers):
    return [answer and answer.tokens for answer in answers]


def unlike_requests(count: int, vocabulary: int):
    """Greedy and sampled, with 0 to 3 draft tokens, with filters and without."""
    rules = [GREEDY, Rules(), Rules(temperature=0.7, top_p=0.9), Rules(temperature=1.5, top_k=5, min_p=0.02)]
    return [make_request(i, vocabulary=vocabulary, drafts=(i * 3) % 4, rules=rules[i % 4]) for i in range(count)]


# --- what must not matter ------------------------------------------------------------------------------------


def test_a_request_does_not_notice_its_slot_or_its_neighbours(verify_backend, device):
    requests = unlike_requests(8, 45)
    together = verify_batch(verify_backend, requests, device=device)
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    shuffled = verify_batch(verify_backend, [requests[i] for i in order], device=device, gap=1, drafted=5)
    assert tokens_of(shuffled) == [together[i].tokens for i in order]
    for request, answer in zip(requests, together, strict=True):
        [alone] = verify_batch(verify_backend, [request], device=device)
        assert alone.tokens == answer.tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_inputs_are_never_written_and_outputs_are_not_parts_of_them(verify_backend, device, temperature):
    generator = torch.Generator().manual_seed(4)
    inputs = {
        "target_logits": torch.randn(16, 40, generator=generator),
        "draft_token_ids": torch.randint(0, 40, (4, 3), generator=generator),
        "draft_lengths": torch.full((4,), 3),
        "positions": torch.arange(4),
        "row_start": torch.arange(4) * 4,
    }
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    sampling = SamplingBatch.of([temperature] * 4, [0.9] * 4, [3] * 4, range(4), device, min_p=[0.01] * 4)
    for output in verify_backend(**inputs, sampling=sampling):
        output.fill_(-7)
    assert all(torch.equal(tensor, before[name]) for name, tensor in inputs.items())


def test_views_with_contiguous_rows_are_read_where_they_lie(verify_backend, device):
    request = make_request(8, vocabulary=33, drafts=2)
    expected = verify_batch(verify_backend, [request], device=device)[0].tokens
    wide = torch.full((3, 50), 9.0, device=device)
    wide[:, :33] = request.logits.to(device)
    ids = torch.tensor([[*request.drafts, 7]], device=device)
    result = verify_backend(
        wide[:, :33],
        ids[:, :2],
        torch.tensor([2], device=device),
        SamplingBatch.of([1.0], [1.0], [0], [request.seed], device),
        torch.tensor([request.position], device=device),
    )
    assert result.token_ids[0, : result.lengths[0]].tolist() == expected


@pytest.mark.parametrize("drafted", [0, 3])
def test_an_empty_batch_has_an_empty_answer(verify_backend, device, drafted):
    for sampling in (SamplingBatch.of([], [], [], [], device), SamplingBatch.of([1.0], [1.0], [0], [0], device)):
        nobody = sampling.rows(torch.zeros(0, dtype=torch.int64, device=device))
        none = torch.zeros(0, dtype=torch.int64, device=device)
        ids = torch.zeros(0, drafted, dtype=torch.int64, device=device)
        result = verify_backend(torch.zeros(0, 5, device=device), ids, none, nobody, none)
        assert result.token_ids.shape == (0, drafted + 1)


# --- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [GREEDY, Rules(), Rules(top_k=3)])
@pytest.mark.parametrize("drafts", [0, 1, 4])
def test_batch_of_one(verify_backend, device, drafts, rules):
    for number in range(4):
        request = make_request(number, vocabulary=37, drafts=drafts, rules=rules)
        checked(verify_backend, device, [request])


def test_512_requests(verify_backend, device):
    requests = [
        make_request(i, vocabulary=19, drafts=i % 2, rules=GREEDY if i % 4 == 0 else Rules()) for i in range(512)
    ]
    checked(verify_backend, device, requests)


@pytest.mark.parametrize("vocabulary", [1, 2, 127, 128, 129])
def test_a_vocabulary_need_not_be_a_multiple_of_anything(verify_backend, device, vocabulary):
    for rules in (GREEDY, Rules(), Rules(top_p=0.8)):
        requests = [make_request(i, vocabulary=vocabulary, drafts=i % 3, rules=rules) for i in range(3)]
        checked(verify_backend, device, requests)


def test_tokens_that_pad_a_vocabulary_never_come(verify_backend, device):
    """The target's last columns are padding at -inf."""
    for number in range(6):
        for rules in (GREEDY, Rules(temperature=2.0), Rules(temperature=2.0, top_k=64)):
            request = make_request(number, vocabulary=64, drafts=2, rules=rules)
            request.logits[:, 50:] = -INF
            [answer] = checked(verify_backend, device, [request])
            assert max(answer.tokens) < 50


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_all_equal_logits(verify_backend, device, temperature):
    filters = [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 1.0}] if temperature else [{}]
    for chosen in filters:
        requests = [make_request(i, vocabulary=50, drafts=2) for i in range(3)]
        rules = Rules(temperature=temperature, **chosen)
        flat = [replace(r, logits=torch.full_like(r.logits, 3.25), rules=rules) for r in requests]
        answers = checked(verify_backend, device, flat)
        if not temperature:
            assert {token for answer in answers for token in answer.tokens} == {0}


# --- probabilities at the edge -------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [GREEDY, Rules(), Rules(temperature=0.6, top_k=9, top_p=0.9)])
def test_drafts_that_are_plain_decodings_are_all_accepted_and_no_other(verify_backend, device, rules):
    for number in range(8):
        request = make_request(number, vocabulary=23, drafts=3, rules=rules, agreement=1.0)
        [answer] = checked(verify_backend, device, [request])
        assert answer.tokens[:-1] == request.drafts
        at = number % 3
        other = [*request.drafts[:at], (request.drafts[at] + 1) % 23, *request.drafts[at + 1 :]]
        [cut] = checked(verify_backend, device, [replace(request, drafts=other)])
        assert cut.tokens == answer.tokens[: at + 1]


@pytest.mark.parametrize(("row", "rules"), [([0.0, 1.0, -INF, 0.5], Rules()), ([0.0, 1.0, -9.0, 0.5], Rules(top_k=3))])
def test_drafted_tokens_that_the_target_never_chooses_are_not_accepted(verify_backend, device, row, rules):
    base = make_request(0, vocabulary=4, drafts=1, rules=rules)
    requests = [replace(base, logits=torch.tensor([row] * 2), drafts=[2], seed=seed) for seed in range(8)]
    for answer in checked(verify_backend, device, requests):
        assert len(answer.tokens) == 1
        assert answer.tokens != [2]


def test_a_one_hot_target_accepts_its_token_and_corrects_any_other(verify_backend, device):
    logits = torch.tensor([[-1e4, 1e4, -1e4]] * 2)
    for drafted, expected in ((1, [1, 1]), (0, [1]), (2, [1])):
        request = replace(make_request(3, vocabulary=3, drafts=1), logits=logits, drafts=[drafted])
        assert tokens_of(checked(verify_backend, device, [request])) == [expected]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [-1, -(2**62), 5, 6, 2**62])
def test_ids_that_the_target_does_not_have_are_not_accepted(verify_backend, device, bad, temperature):
    base = make_request(1, vocabulary=5, drafts=2, rules=Rules(temperature=temperature))
    [answer] = verify_batch(verify_backend, [replace(base, drafts=[bad, 0])], device=device)
    assert len(answer.tokens) == 1
    assert 0 <= answer.tokens[0] < 5


@pytest.mark.parametrize("temperature", [1e-5, 1e6])
def test_the_coldest_and_the_hottest_temperature_neither_overflow_nor_lose_a_row(verify_backend, device, temperature):
    for number in range(4):
        request = make_request(number, vocabulary=40, drafts=2, rules=Rules(temperature=temperature))
        request.logits.mul_(1e4)
        request.logits[:, 3] = -INF
        checked(verify_backend, device, [request])


# --- broken rows ---------------------------------------------------------------------------------------------


def broken_requests(value: float, rules: Rules):
    """Six requests of which every other has one broken row: number i in row i / 2 of three."""
    requests = [make_request(i, vocabulary=26, drafts=2, rules=rules) for i in range(6)]
    for i in range(0, 6, 2):
        row = requests[i].logits[i // 2]
        if value == -INF:
            row.fill_(value)
        else:
            row[(7 * i) % 26] = value
    return requests


@pytest.mark.parametrize("rules", [GREEDY, Rules(temperature=0.7), Rules(top_p=0.9, min_p=0.01)])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_broken_row_fails_its_request_if_it_has_to_be_read_and_nobody_else(verify_backend, device, value, rules):
    requests = broken_requests(value, rules)
    answers = checked(verify_backend, device, requests)
    assert answers[0] is None
    healthy = [request for i, request in enumerate(requests) if i % 2]
    alone = verify_batch(verify_backend, healthy, device=device)
    assert tokens_of(answers[1::2]) == tokens_of(alone)


@pytest.mark.parametrize("rules", [GREEDY, Rules()])
def test_what_is_behind_the_first_difference_may_be_broken(verify_backend, device, rules):
    request = make_request(2, vocabulary=12, drafts=3, rules=rules)
    request.logits[:, request.drafts[0]] = -INF
    request.logits[1:] = NAN
    [answer] = checked(verify_backend, device, [request])
    assert len(answer.tokens) == 1


@pytest.mark.parametrize("rules", [GREEDY, Rules(), Rules(top_k=4)])
def test_a_mask_that_allows_nothing_fails_the_request_and_hides_nan(verify_backend, device, rules):
    requests = [make_request(i, vocabulary=40, drafts=1, rules=rules) for i in range(3)]
    allowed = torch.ones(2, 40, dtype=torch.bool)
    nothing, some = allowed.clone(), allowed.clone()
    nothing[0] = False
    some[:, :9] = False
    requests[1].logits[0, 4] = NAN
    masked = [replace(r, allowed=mask) for r, mask in zip(requests, (nothing, some, allowed), strict=True)]
    answers = checked(verify_backend, device, masked)
    assert answers[0] is None
    assert min(answers[1].tokens) >= 9
    assert tokens_of(answers[2:]) == tokens_of(verify_batch(verify_backend, requests[2:], device=device))
