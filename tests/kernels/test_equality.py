"""One seed, one text: whatever drafts, draft lengths and company a request has, its tokens are plain decoding's.

There is no tolerance here: the float64 oracle of the single draw is in `test_kernel_against_reference`, and plain
decoding's distribution in `test_losslessness`.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from slipstream_kernels import SamplingBatch, verify

from tests.kernels.cases import CASES, INTERPRETED
from tests.kernels.generation import Case, decode
from tests.kernels.oracle import Rules

TOKENS = 7
WHO = range(60)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_any_draft_length_and_any_batch_give_the_text_of_plain_decoding(case: Case) -> None:
    plain = decode(case, WHO, TOKENS, drafted=0)
    for drafted in (None, 1, 2, 5, 8):
        assert decode(case, WHO, TOKENS, drafted=drafted) == plain, drafted
    order = random.Random(1).sample(WHO, 10)
    assert decode(case, order, TOKENS) == [plain[number] for number in order]
    assert [decode(case, [number], TOKENS)[0] for number in order[:3]] == [plain[number] for number in order[:3]]


@pytest.mark.parametrize("case", INTERPRETED, ids=lambda case: case.name)
def test_the_kernel_gives_the_text_of_plain_decoding(case: Case, device: str) -> None:
    case = replace(case, device=device)
    who = range(4)
    plain = decode(case, who, 3, drafted=0, backend="reference")
    for drafted in (0, 2):
        assert decode(case, who, 3, drafted=drafted, backend="kernel") == plain, drafted


def test_a_change_of_draft_lengths_within_an_answer_changes_nothing() -> None:
    """As a kill, a resumption or a draft length chosen anew at each step does."""
    case = next(case for case in CASES if case.name == "everything, greedy")
    plain = decode(case, WHO, TOKENS, drafted=0)
    for kept in range(TOKENS):
        start = decode(case, WHO, kept, drafted=4)
        for drafted in (0, 1, 3):
            assert decode(case, WHO, TOKENS, drafted=drafted, start=start) == plain


def test_a_draft_that_knows_the_noise_is_always_accepted() -> None:
    case = Case(name="itself", draft="shared", agreement=1.0, noise=0.0, rules=Rules(temperature=1.3, top_p=0.9))
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(3)).expand(5, -1).contiguous()
    for number in WHO:
        batch = SamplingBatch.of([case.rules.temperature], [case.rules.top_p], [0], [number])
        none = torch.zeros(5, dtype=torch.int64)
        plain = verify(logits, none[:, None][:, :0], none, batch.expand(5), torch.arange(5) + 9)
        drafts = plain.token_ids[:4].T
        result = verify(logits, drafts, torch.tensor([4]), batch, torch.tensor([9]))
        assert result.accepted.tolist() == [4]


@pytest.mark.parametrize("top_p", [0.9, 1.0])
@pytest.mark.parametrize("requests", [1, 9])
def test_rows_of_a_large_vocabulary_are_read_in_turn_with_the_same_tokens(requests: int, top_p: float) -> None:
    """The rows after a difference are not read: they may be broken."""
    vocabulary, drafted = 40_000, 3
    generator = torch.Generator().manual_seed(requests)
    logits = 3 * torch.randn(requests, drafted + 1, vocabulary, generator=generator)
    heat = [(0.8, 0.0, 1.2)[i % 3] for i in range(requests)]
    batch = SamplingBatch.of(heat, [top_p] * requests, [0] * requests, range(requests))
    positions, none = torch.arange(requests), torch.zeros(requests, dtype=torch.int64)
    plain = torch.stack(
        [verify(logits[:, j], none[:, None][:, :0], none, batch, positions + j).token_ids[:, 0] for j in range(4)], 1
    )
    accepted = torch.arange(requests) % (drafted + 1)
    drafts = torch.where(torch.arange(drafted) < accepted[:, None], plain[:, :drafted], (plain[:, :drafted] + 1) % 5)
    for request, count in enumerate(accepted.tolist()):
        logits[request, count + 1 :] = float("nan")
    result = verify(logits.flatten(0, 1), drafts, none + drafted, batch, positions)
    assert result.accepted.tolist() == accepted.tolist()
    assert torch.equal(result.token_ids, plain.where(torch.arange(drafted + 1) <= accepted[:, None], -1))
