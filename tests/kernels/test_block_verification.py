"""Block verification: its formulas at the edge, and what it gains.

That it emits what the paper's algorithm emits is in `test_kernel_against_reference.py` and `test_verification.py`, that
its output has the target's distribution in `test_losslessness.py`.
"""

from __future__ import annotations

import math

import pytest
import torch
from slipstream_kernels import Purpose, SamplingBatch, sample, step_purpose, verify
from slipstream_kernels.spec_verify import block

from tests.kernels.batches import make_request, verify_batch
from tests.kernels.checker import check
from tests.kernels.oracle import Rules


def float64(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_joint_probability_is_cut_at_one_at_every_token():
    p, q = float64([0.5, 0.2, 0.9], [0.1, 0.9, 0.5]), float64([0.25, 0.4, 0.3], [0.4, 0.3, 1.0])
    expected = float64([1.0, 0.5, 1.0], [0.25, 0.75, 0.375])
    torch.testing.assert_close(block.joint_probs(p, q), expected)


def test_tokens_of_no_probability_leave_no_part_of_a_block():
    nothing = block.joint_probs(float64([0.0, 0.0, 0.5, math.nan, 0.3]), float64([0.0, 0.5, 0.0, 0.5, 0.5]))
    assert nothing.tolist() == [[0.0] * 5]
    # One that the draft said it never draws, and the target does choose, stands.
    assert block.joint_probs(float64([0.3, 0.2]), float64([0.0, 0.4])).tolist() == [[1.0, 0.5]]


def test_a_prefix_is_weighed_by_what_is_left_after_it():
    joint = float64([0.5, 0.25, 0.1])
    masses = float64([0.3, 0.05])
    lengths = torch.tensor([3])
    expected = float64([0.3 / 0.8, 0.05 / 0.8, 0.1])
    torch.testing.assert_close(block.prefix_probs(joint, masses, lengths), expected)
    # With two drafted tokens the second is the last, whatever stands behind it.
    assert float(block.prefix_probs(joint, masses, lengths - 1)[0, 1]) == 0.25
    # Nothing left, and nothing to make up for: the draft is the target here.
    assert block.prefix_probs(float64([1.0, 0.5]), float64([0.0]), torch.tensor([2])).tolist() == [[0.0, 0.5]]


def test_a_number_of_exactly_zero_accepts_no_prefix_without_probability():
    zero, valid = float64([0.0, 0.0, 0.0]), torch.tensor([[True, True, True]])
    assert block.accepted_prefix(zero, float64([0.5, 0.0, 0.0]), valid).tolist() == [1]
    assert block.accepted_prefix(zero, float64([0.0, 0.0, 0.0]), valid).tolist() == [0]
    # The longest counts, also over one that was not accepted; not one that was never drafted.
    assert block.accepted_prefix(zero, float64([0.0, 0.5, 0.5]), torch.tensor([[True, True, False]])).tolist() == [2]
    almost_one = float64([1 - 2**-52])
    assert block.accepted_prefix(almost_one, float64([1.0]), valid[:, :1]).tolist() == [1]


def test_masses_with_and_without_what_drafts_were_drawn_from():
    joint, p = float64([0.5]), torch.tensor([[[0.6, 0.3, 0.1]]])
    sampled = block.residual_masses(joint, p, torch.tensor([[[0.1, 0.2, 0.7]]]))
    torch.testing.assert_close(sampled, float64([0.2]))
    one_hot = block.residual_masses(joint, p, torch.tensor([[[0.0, 1.0, 0.0]]]))
    torch.testing.assert_close(block.one_hot_masses(joint, p[:, :, 1]), one_hot)


@pytest.mark.parametrize("one_hot", [True, False])
def test_with_one_drafted_token_both_rules_are_one(verify_backend, device, one_hot):
    requests = [make_request(i, vocabulary=30, drafts=1, rules=Rules(top_p=0.95)) for i in range(8)]
    requests = [request.one_hot() for request in requests] if one_hot else requests
    standard, blocks = (
        verify_batch(verify_backend, requests, device=device, block_verification=b) for b in (False, True)
    )
    assert [answer.tokens for answer in blocks] == [answer.tokens for answer in standard]


def test_greedy_requests_are_verified_one_by_one_beside_sampled_ones(verify_backend, device):
    greedy = [make_request(i, vocabulary=30, drafts=3, rules=Rules(temperature=0.0)) for i in range(4)]
    sampled = [make_request(i, vocabulary=30, drafts=3) for i in range(2)]
    for requests in (greedy, [*greedy, *sampled]):
        blocks = verify_batch(verify_backend, requests, device=device, block_verification=True)
        for request, answer in zip(requests, blocks, strict=True):
            check(request, answer, block=True)
        alone = verify_batch(verify_backend, greedy, device=device)
        assert [answer.tokens for answer in blocks[:4]] == [answer.tokens for answer in alone]


def test_blocks_have_more_tokens_accepted():
    """Of the same drafts, by the same draft and target."""
    count, drafted, vocabulary = 4000, 6, 12
    generator = torch.Generator().manual_seed(5)
    target = 1.2 * torch.randn(drafted + 1, vocabulary, generator=generator)
    draft = target[:-1] + 0.9 * torch.randn(drafted, vocabulary, generator=generator)
    sampling = SamplingBatch.of([1.0] * count, [1.0] * count, [0] * count, range(count))
    zeros = torch.zeros(count, dtype=torch.int64)
    columns = [
        sample(row.expand(count, -1), sampling, zeros + j, step_purpose(Purpose.DRAFT, j))
        for j, row in enumerate(draft)
    ]
    ids, log_probs = torch.stack([ids for ids, _ in columns], 1), torch.stack([logs for _, logs in columns], 1)
    accepted = [
        verify(
            target.repeat(count, 1), ids, zeros + drafted, log_probs, sampling, zeros, block_verification=in_blocks
        ).accepted.float()
        for in_blocks in (False, True)
    ]
    gain = accepted[1].mean() - accepted[0].mean()
    assert gain > 4 * (accepted[1] - accepted[0]).std() / math.sqrt(count)
