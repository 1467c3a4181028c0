"""Checks of the values in `verify`'s arguments. On a GPU all values are read back in one transfer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.batch import HOTTEST, SamplingBatch
from slipstream_kernels.spec_verify.checks import Arguments


class _Rule(NamedTuple):
    """A check of one argument, with the mask of its invalid values."""

    name: str
    values: Tensor
    broken: Tensor
    """bool, of the shape of `values`."""
    demand: str
    """The requirement on a value; `{}` is replaced by the entry of `than` at the same index."""
    than: Tensor | None = None

    def error(self) -> ValueError:
        """The error for the first invalid value."""
        index = tuple(self.broken.nonzero()[0].tolist())
        place = f"[{', '.join(map(str, index))}]" if index else ""
        demand = self.demand if self.than is None else self.demand.format(self.than[index].item())
        return ValueError(f"{self.name}{place} = {self.values[index].item()}: {demand}")


def check_values_of(given: Arguments) -> None:
    """Raise a ValueError with the first invalid value, its index and the requirement."""
    rules = [*_row_rules(given), *_token_rules(given), *_sampling_rules(given.sampling, given.target_logits.size(1))]
    if given.adjustments is not None:
        rules += _adjustment_rules(given.adjustments, given.target_logits.size(1))
    flags = torch.stack([rule.broken.any() for rule in rules]).tolist()
    for rule, broken in zip(rules, flags, strict=True):
        if broken:
            raise rule.error()


def _row_rules(given: Arguments) -> Iterator[_Rule]:
    lengths, most, total = given.draft_lengths, given.draft_token_ids.size(1), given.target_logits.size(0)
    yield _Rule(
        "draft_lengths",
        lengths,
        (lengths < 0) | (lengths > most),
        f"must be in 0..{most}, which is what draft_token_ids has room for",
    )
    if given.row_start is None:
        ends = (lengths + 1).cumsum(0)
        yield _Rule(
            "draft_lengths",
            lengths,
            ends > total,
            f"the rows up to this request's last are {{}}, target_logits has {total}",
            ends,
        )
        return
    start = given.row_start
    yield _Rule("row_start", start, start < 0, "must be 0 or more")
    yield _Rule("row_start", start, start >= total, f"target_logits has {total} rows")  # first: `ends` may overflow
    ends = start + lengths + 1
    before = torch.cat((start[:1], ends[:-1]))
    yield _Rule("row_start", start, start < before, "the rows of the request before end at {}", before)
    yield _Rule("row_start", start, ends > total, f"its rows end at {{}}, target_logits has {total}", ends)


def _token_rules(given: Arguments) -> Iterator[_Rule]:
    ids, vocabulary = given.draft_token_ids, given.target_logits.size(1)
    drafted = torch.arange(ids.size(1), device=ids.device) < given.draft_lengths[:, None]
    yield _Rule(
        "draft_token_ids",
        ids,
        drafted & ((ids < 0) | (ids >= vocabulary)),
        f"the target's vocabulary has {vocabulary} tokens",
    )
    yield _Rule("positions", given.positions, given.positions < 0, "must be 0 or more")


def _sampling_rules(sampling: SamplingBatch, vocabulary: int) -> Iterator[_Rule]:
    for name, most in (("temperature", HOTTEST), ("top_p", 1), ("min_p", 1)):
        values = getattr(sampling, name)
        yield _Rule(f"sampling.{name}", values, ~((values >= 0) & (values <= most)), f"must be in [0, {most:g}]")
    top_k = sampling.top_k
    yield _Rule("sampling.top_k", top_k, top_k < 0, "must be 0 (off) or more")
    yield _Rule("sampling.top_k", top_k, top_k > vocabulary, f"the target's vocabulary has {vocabulary} tokens")
    yield from _flag_rules(sampling)


def _flag_rules(sampling: SamplingBatch) -> Iterator[_Rule]:
    """Summary fields that exclude a feature although a tensor uses it. The opposite is valid in a selection of rows."""
    temperature, sampled = sampling.temperature, sampling.temperature > 0
    if sampling.all_greedy:
        yield _Rule("sampling.temperature", temperature, sampled, "sampling.all_greedy is True")
        return  # Nothing filters then.
    if not sampling.any_greedy:
        yield _Rule("sampling.temperature", temperature, ~sampled, "sampling.any_greedy is False")
    if not sampling.any_top_p:
        filtering = sampled & (sampling.top_p < 1)
        yield _Rule("sampling.top_p", sampling.top_p, filtering, "sampling.any_top_p is False")
    if not sampling.any_min_p:
        filtering = sampled & (sampling.min_p > 0)
        yield _Rule("sampling.min_p", sampling.min_p, filtering, "sampling.any_min_p is False")
    largest = sampling.largest_top_k
    above = sampled & (sampling.top_k > largest)
    yield _Rule("sampling.top_k", sampling.top_k, above, f"sampling.largest_top_k is {largest}")


def _adjustment_rules(adjustments: LogitAdjustments, vocabulary: int) -> Iterator[_Rule]:
    if adjustments.bias_offsets is not None and adjustments.bias_ids is not None:
        yield from _sparse_rules("bias", adjustments.bias_offsets, adjustments.bias_ids, vocabulary)
        values = adjustments.bias_values
        assert values is not None, "check_form has seen to it"
        yield _Rule("adjustments.bias_values", values, ~(values < torch.inf), "must be a number below infinity")
    if adjustments.seen_offsets is not None and adjustments.seen_ids is not None:
        yield from _sparse_rules("seen", adjustments.seen_offsets, adjustments.seen_ids, vocabulary)
        yield from _penalty_rules(adjustments)


def _penalty_rules(adjustments: LogitAdjustments) -> Iterator[_Rule]:
    counts, repetition = adjustments.seen_counts, adjustments.repetition
    assert counts is not None, "check_form has seen to it"
    assert repetition is not None, "check_form has seen to it"
    yield _Rule("adjustments.seen_counts", counts, counts < 0, "must be 0 or more")
    usable = repetition.isfinite() & (repetition > 0)
    yield _Rule("adjustments.repetition", repetition, ~usable, "must be a finite number above 0")
    for name in ("frequency", "presence"):
        values = getattr(adjustments, name)
        yield _Rule(f"adjustments.{name}", values, ~values.isfinite(), "must be a finite number")


def _sparse_rules(group: str, offsets: Tensor, ids: Tensor, vocabulary: int) -> Iterator[_Rule]:
    """Offsets ascend from 0 to the number of ids; ids are in the vocabulary and ascend within a request."""
    name, size = f"adjustments.{group}_offsets", ids.size(0)
    yield _Rule(name, offsets[:1], offsets[:1] != 0, "must be 0, where the first request's entries start")
    before = torch.cat((offsets[:1], offsets[:-1]))
    yield _Rule(name, offsets, offsets < before, "must not be below the offset before, {}", before)
    last = torch.arange(offsets.size(0), device=offsets.device) == offsets.size(0) - 1
    yield _Rule(name, offsets, last & (offsets != size), f"must be {size}, which is how many ids there are")
    name = f"adjustments.{group}_ids"
    known = (ids >= 0) & (ids < vocabulary)
    yield _Rule(name, ids, ~known, f"the target's vocabulary has {vocabulary} tokens")
    starts = torch.zeros(size + 1, dtype=torch.bool, device=ids.device)
    starts[offsets.clamp(0, size).long()] = True
    previous = torch.cat((ids[:1] - 1, ids[:-1]))
    yield _Rule(name, ids, (ids <= previous) & ~starts[:size], "must be above the id before, {}", previous)
