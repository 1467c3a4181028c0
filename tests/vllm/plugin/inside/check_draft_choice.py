"""Which of two drafts a request verifies. Requests whose copies or whose drafter's tokens are always right."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch
from slipstream_vllm.draft_choice import Copies, DraftChoice

LONGEST = 4
STEPS = 30


class Text(NamedTuple):
    """What a request's drafts are like at each step: whether they are right, and the length of the match."""

    copies: bool
    drafter: bool
    matched: int = 3


def matched_lengths(texts: list[Text], choice: DraftChoice | None = None, *, drafter_runs: bool = True) -> list[int]:
    """The choices after some steps: the lengths of the matches that are copied."""
    choice = choice or DraftChoice(len(texts), LONGEST, torch.device("cpu"))
    slots, sampled = torch.arange(len(texts)), torch.full((len(texts),), LONGEST)
    for step in range(STEPS):
        ends = (1 + step) * sampled
        tokens = torch.arange(LONGEST).expand(len(texts), -1) + ends[:, None]
        wrong, following = tokens - 1, tokens + LONGEST
        copies = torch.stack([following[row] if text.copies else wrong[row] for row, text in enumerate(texts)])
        drafts = torch.stack([following[row] if text.drafter else wrong[row] for row, text in enumerate(texts)])
        found = Copies(copies, torch.tensor([text.matched for text in texts]))
        choice.learn(slots, ends, sampled, tokens)
        chosen = choice.choose(slots, ends, found, drafts if drafter_runs else None, LONGEST)
        takes_copy = (choice.matched > 0)[:, None]
        assert torch.equal(chosen, torch.where(takes_copy, copies, drafts if drafter_runs else copies))
    return choice.matched.tolist()


@pytest.mark.parametrize("matched", [3, 16])
def test_a_request_takes_the_draft_that_was_right(matched: int) -> None:
    texts = [Text(copies, drafter, matched) for copies, drafter in itertools.product((False, True), repeat=2)]
    none, of_drafter, copied, _ = matched_lengths(texts)
    assert (of_drafter, copied) == (0, matched)
    assert none in (0, matched)


def test_without_a_match_the_drafter_is_taken() -> None:
    assert matched_lengths([Text(copies=True, drafter=False, matched=0)]) == [0]


def test_without_the_drafter_there_are_copies_or_nothing() -> None:
    assert matched_lengths([Text(False, True), Text(True, True, 0)], drafter_runs=False) == [3, -1]


def test_a_longer_match_is_likelier_from_what_other_requests_had() -> None:
    """The same drafter for all: short copies are wrong, long ones are right."""
    choice = DraftChoice(4, LONGEST, torch.device("cpu"))
    matched_lengths([Text(False, False, 2), Text(False, True, 2), Text(True, False, 16), Text(True, True, 16)], choice)
    slots, ends = torch.tensor([0, 1]), torch.tensor([5, 5])  # new requests: their own records are forgotten
    choice.learn(slots, ends, torch.tensor([1, 1]), torch.zeros(2, LONGEST, dtype=torch.int64))
    tokens = torch.ones(2, LONGEST, dtype=torch.int64)
    choice.choose(slots, ends, Copies(tokens, torch.tensor([2, 16])), 2 * tokens, LONGEST)
    assert choice.matched[:2].tolist() == [0, 16]


def test_a_shorter_draft_has_no_tokens_beyond_its_width() -> None:
    choice = DraftChoice(1, LONGEST, torch.device("cpu"))
    slot, ends, tokens = torch.tensor([0]), torch.tensor([5]), torch.ones(1, LONGEST, dtype=torch.int64)
    choice.choose(slot, ends, Copies(tokens, torch.tensor([3])), tokens, 1)
    assert choice._drafts.tolist() == [[[1, -1, -1, -1], [1, -1, -1, -1]]]
