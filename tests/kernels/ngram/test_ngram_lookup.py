"""Prompt look-up: which drafts, the same from the engine's index, the reference and the kernel; bad input."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slipstream_engine.drafts import DraftRow, PromptLookup
from slipstream_kernels.ngram_lookup import NgramWorkspace, ngram_lookup

UNTOUCHED = 2**30
"""Stands beyond the requests' lengths: whoever looks there finds what is nowhere else."""

text = st.integers(1, 4).flatmap(lambda symbols: st.lists(st.integers(0, symbols - 1), max_size=40))
texts = st.lists(text, min_size=1, max_size=6)
sizes = st.sampled_from([(2, 3), (1, 1), (1, 4), (3, 3), (2, 8)])


def table(rows: list[list[int]], device: str, *, columns: int | None = None, dtype: torch.dtype = torch.int64):
    """`rows` as tokens [B, L] and lengths [B]."""
    columns = max(map(len, rows), default=0) if columns is None else columns
    padded = [row + [UNTOUCHED + index] * (columns - len(row)) for index, row in enumerate(rows)]
    tokens = torch.tensor(padded, dtype=dtype, device=device).view(len(rows), columns)
    return tokens, torch.tensor([len(row) for row in rows], dtype=torch.int64, device=device)


def drafted(found) -> list[list[int]]:
    """The drafts without their padding, which is checked."""
    ids, lengths = found.token_ids.tolist(), found.lengths.tolist()
    assert all(set(row[length:]) <= {-1} for row, length in zip(ids, lengths, strict=True))
    return [row[:length] for row, length in zip(ids, lengths, strict=True)]


def by_index(rows: list[list[int]], most: list[int], min_ngram: int, max_ngram: int) -> list[list[int]]:
    """What the engine's index drafts."""
    sized = type("Sized", (PromptLookup,), {"longest": max_ngram, "shortest": min_ngram})
    source = sized(len(rows), torch.device("cpu"))
    asked = [DraftRow(slot, row, count) for slot, (row, count) in enumerate(zip(rows, most, strict=True))]
    found = source.propose(asked)
    return [ids[:length] for ids, length in zip(found.token_ids.tolist(), found.lengths, strict=True)]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(texts, sizes, st.data())
def test_the_reference_drafts_what_the_engines_index_drafts(rows, ngrams, data):
    min_ngram, max_ngram = ngrams
    most = data.draw(st.lists(st.integers(0, 7), min_size=len(rows), max_size=len(rows)))
    tokens, lengths = table(rows, "cpu", columns=45)
    found = ngram_lookup(
        tokens, lengths, torch.tensor(most), min_ngram=min_ngram, max_ngram=max_ngram, drafts=7, backend="reference"
    )
    assert drafted(found) == by_index(rows, most, min_ngram, max_ngram)


CASES = {
    "empty": ([], []),
    "one token": ([5], []),
    "two equal tokens": ([5, 5], []),
    "three equal tokens: the match overlaps the suffix": ([5, 5, 5], [5, 5, 5, 5]),
    "all equal": ([5] * 39, [5, 5, 5, 5]),
    "no match": (list(range(37)), []),
    "one token alone is no match": ([1, 2, 3, 1], []),
    "the latest occurrence wins": ([1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),
    "a longer match beats a later one": ([1, 2, 3, 8, 7, 2, 3, 9, 1, 2, 3], [8, 7, 2, 3]),
    "a shorter match is better than none": ([2, 3, 9, 4, 1, 2, 3], [9, 4, 1, 2]),
    "the text goes round": ([7, 8, 9, 7, 8], [9, 7, 8, 9]),
    "the text goes round, in two": ([4, 7, 8, 7, 8], [7, 8, 7, 8]),
    "the occurrence is at the start": ([1, 2, 3, 4, 1, 2, 3], [4, 1, 2, 3]),
    "the first token has no one before it": ([2, 3, 9, 9, 2, 3], [9, 9, 2, 3]),
    "negative ids": ([-1, -2, 7, -1, -2], [7, -1, -2, 7]),
}


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_cases_by_hand(lookup, device, dtype):
    tokens, lengths = table([text for text, _ in CASES.values()], device, columns=41, dtype=dtype)
    found = lookup(tokens, lengths, torch.full_like(lengths, 4), drafts=6)
    assert dict(zip(CASES, drafted(found), strict=True)) == {name: drafts for name, (_, drafts) in CASES.items()}
    assert (found.token_ids.dtype, found.lengths.dtype) == (torch.int64, torch.int64)


@pytest.mark.usefixtures("poisoned_outputs")
def test_each_request_gets_at_most_what_it_asks_for(lookup, device):
    tokens, lengths = table([[1, 2, 3, 1, 2]] * 4, device)
    found = lookup(tokens, lengths, torch.tensor([0, 1, 3, 5], device=device), drafts=5)
    assert drafted(found) == [[], [3], [3, 1, 2], [3, 1, 2, 3, 1]]


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(("requests", "columns", "drafts"), [(0, 9, 4), (3, 0, 4), (3, 1, 4), (3, 9, 0), (0, 0, 0)])
def test_empty_sides(lookup, device, requests, columns, drafts):
    tokens = torch.zeros(requests, columns, dtype=torch.int64, device=device)
    lengths = torch.full((requests,), columns, dtype=torch.int64, device=device)
    found = lookup(tokens, lengths, torch.full_like(lengths, min(drafts, columns)), drafts=drafts)
    assert found.token_ids.shape == (requests, drafts)
    expected = [[0] * drafts if columns > 2 else []] * requests
    assert drafted(found) == expected


@settings(derandomize=True, deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, st.sampled_from([(2, 3), (1, 4)]), st.randoms(use_true_random=False))
def test_a_requests_drafts_do_not_depend_on_its_slot_or_neighbours(lookup, device, rows, ngrams, random):
    def look_up(rows: list[list[int]]) -> list[list[int]]:
        tokens, lengths = table(rows, device, columns=48)
        most = torch.full_like(lengths, 4)
        return drafted(lookup(tokens, lengths, most, min_ngram=ngrams[0], max_ngram=ngrams[1], drafts=4))

    order = random.sample(range(len(rows)), len(rows))
    together = look_up(rows)
    assert look_up([rows[index] for index in order]) == [together[index] for index in order]
    assert look_up(rows[:1]) == together[:1]


def test_no_input_is_written_and_rows_may_lie_apart(lookup, device):
    tokens, lengths = table([[1, 2, 3, 1, 2], [4, 4, 4]], device, columns=9)
    most = torch.full_like(lengths, 2)
    view = tokens[:, :5]
    before = [part.clone() for part in (tokens, lengths, most)]
    assert drafted(lookup(view, lengths, most, drafts=2)) == [[3, 1], [4, 4]]
    assert all(torch.equal(old, new) for old, new in zip(before, (tokens, lengths, most), strict=True))


def arguments(**changes):
    """Good arguments for two requests of up to five tokens, with `changes`."""
    good = {
        "tokens": torch.zeros(2, 5, dtype=torch.int64),
        "lengths": torch.tensor([5, 3]),
        "most": torch.tensor([4, 0]),
        "drafts": 4,
    }
    return good | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": torch.zeros(5, dtype=torch.int64)}, r"tokens has the shape \(5,\): must be \[B, L\]"),
        ({"tokens": torch.zeros(2, 5)}, r"tokens is torch.float32: must be torch.int32 or torch.int64"),
        ({"tokens": torch.zeros(5, 2, dtype=torch.int64).T}, r"tokens has stride 2 within a row: must be 1"),
        ({"lengths": torch.tensor([5])}, r"lengths has the shape \(1,\): tokens has 2 rows"),
        ({"lengths": torch.tensor([5, 3], dtype=torch.int32)}, r"lengths is torch.int32: must be torch.int64"),
        ({"lengths": torch.tensor([5, 0, 3])[::2]}, r"lengths has stride 2: must be 1"),
        ({"lengths": torch.tensor([5, 6])}, r"lengths\[1\] = 6: must be in 0..5, tokens' columns"),
        ({"lengths": torch.tensor([-1, 5])}, r"lengths\[0\] = -1: must be in 0..5"),
        ({"lengths": torch.zeros(2, dtype=torch.int64, device="meta")}, r"lengths is on meta: tokens is on cpu"),
        ({"most": torch.tensor([[4, 0]])}, r"most has the shape \(1, 2\): tokens has 2 rows"),
        ({"most": torch.tensor([4.0, 0.0])}, r"most is torch.float32: must be torch.int64"),
        ({"most": torch.tensor([4, 5])}, r"most\[1\] = 5: must be in 0..4, drafts"),
        ({"most": torch.tensor([4, -2])}, r"most\[1\] = -2: must be in 0..4, drafts"),
        ({"min_ngram": 4}, r"min_ngram = 4: must be in 1..max_ngram = 3"),
        ({"min_ngram": 0}, r"min_ngram = 0: must be in 1..max_ngram = 3"),
        ({"max_ngram": 17}, r"max_ngram = 17: must be at most 16"),
        ({"drafts": -1}, r"drafts = -1: must be in 0..1024"),
        ({"drafts": 1025}, r"drafts = 1025: must be in 0..1024"),
        ({"tokens": [[1, 2]]}, r"tokens is list: must be torch.Tensor"),
        ({"lengths": None}, r"lengths is NoneType: must be torch.Tensor"),
        ({"most": 4}, r"most is int: must be torch.Tensor"),
        ({"drafts": 3.0}, r"drafts is float: must be int"),
        ({"min_ngram": 1.5}, r"min_ngram is float: must be int"),
        ({"max_ngram": None}, r"max_ngram is NoneType: must be int"),
        ({"workspace": 3}, r"workspace is int: must be NgramWorkspace"),
        ({"backend": "cuda"}, r"backend = 'cuda': must be 'auto', 'reference' or 'kernel'"),
        ({"workspace": NgramWorkspace.of(1)}, r"workspace is for 1 requests: tokens has 2 rows"),
        ({"workspace": NgramWorkspace.of(2, "meta")}, r"workspace is on meta: tokens is on cpu"),
    ],
)
def test_bad_input_is_named_with_both_values(changes, message):
    with pytest.raises(ValueError, match=message):
        ngram_lookup(**arguments(**changes))


def test_values_are_not_read_back_when_the_caller_vouches_for_them():
    # On the meta device there are none to read.
    given = {name: part.to("meta") for name, part in arguments().items() if name != "drafts"}
    found = ngram_lookup(**given, drafts=4, check_values=False)
    assert (found.token_ids.shape, found.lengths.shape) == ((2, 4), (2,))


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from slipstream_kernels.errors import KernelUnavailable
from slipstream_kernels.ngram_lookup import ngram_lookup
given = dict(tokens=torch.tensor([[1, 2, 3, 1, 2]]), lengths=torch.tensor([5]), most=torch.tensor([2]), drafts=2)
assert ngram_lookup(**given).token_ids.tolist() == [[3, 1]]
try:
    ngram_lookup(**given, backend="kernel")
except KernelUnavailable as error:
    assert "triton" in str(error), error
else:
    raise AssertionError("no error")
"""


def test_without_triton_the_reference_answers_and_the_kernel_says_what_is_missing():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], check=True, env=environment)
