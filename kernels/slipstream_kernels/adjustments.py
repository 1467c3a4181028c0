"""Adjustments of a request's logits before sampling: logit bias, repetition penalties and a grammar mask.

They are applied in this order, as in vLLM. The input logits are never written: `adjusted` makes a copy, and the kernel
adjusts each tile on load.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from slipstream_kernels.python_values import LARGEST, SMALLEST, integer, integers, listed, number


@dataclass(frozen=True, kw_only=True)
class LogitAdjustments:
    """Adjustments of B requests' logits, with every tensor on the logits' device. The tensors of each of the three
    groups are given together or not at all. `of` builds an instance from Python values.

    Bias is added. If a token occurs in the prompt or the output, its logit x becomes x / r if positive, else x * r
    (repetition), then x - f * count (frequency), then x - p if count > 0 (presence). The drafted tokens before a row
    count as output. The mask sets forbidden tokens to -inf.
    """

    bias_offsets: Tensor | None = None
    """int32 [B + 1]: request i owns the entries `bias_offsets[i]` to `bias_offsets[i + 1]`."""
    bias_ids: Tensor | None = None
    """int32 [n], strictly ascending within a request."""
    bias_values: Tensor | None = None
    """float32 [n]; -inf forbids the token."""

    repetition: Tensor | None = None
    """float32 [B], above 0; 1 is off."""
    frequency: Tensor | None = None
    """float32 [B], 0 is off."""
    presence: Tensor | None = None
    """float32 [B], 0 is off."""
    seen_offsets: Tensor | None = None
    """int32 [B + 1], as `bias_offsets`."""
    seen_ids: Tensor | None = None
    """int32 [m], strictly ascending within a request."""
    seen_counts: Tensor | None = None
    """int32 [m], number of occurrences in the output so far; 0 if the token occurs in the prompt only."""

    bitmask: Tensor | None = None
    """int32 [N, ceil(V / 32)], one row per row of logits: bit v % 32 of word v // 32 is set if token v is allowed."""

    @classmethod
    def of(
        cls,
        vocabulary: int,
        *,
        bias: Sequence[Mapping[int, float]] | None = None,
        prompts: Sequence[Sequence[int]] | None = None,
        outputs: Sequence[Sequence[int]] | None = None,
        repetition: Sequence[float] | None = None,
        frequency: Sequence[float] | None = None,
        presence: Sequence[float] | None = None,
        allowed: Sequence[Collection[int] | None] | None = None,
        device: torch.device | str = "cpu",
    ) -> LogitAdjustments:
        """Build adjustments for a vocabulary of `vocabulary` tokens from one value per request.

        Penalties that are None are off. `prompts` and `outputs` serve the penalties only. `allowed` has one entry per
        row of logits: the tokens that a grammar allows there, or None for all tokens.

        Raises:
            ValueError: the numbers of requests differ, a token is not in the vocabulary, or a value is not a number,
                out of range or beyond float32.
        """
        if integer("vocabulary", vocabulary) < 1:
            raise ValueError(f"vocabulary = {vocabulary}: must be 1 or more")
        given: dict[str, object] = {"bias": bias, "repetition": repetition, "frequency": frequency}
        given |= {"presence": presence, "prompts": prompts, "outputs": outputs}
        columns = {name: listed(name, values) for name, values in given.items() if values is not None}
        _check_sizes(columns)
        strengths = {
            name: values for name, values in columns.items() if name in ("repetition", "frequency", "presence")
        }
        groups: dict[str, Tensor] = {}
        if bias is not None:
            groups |= _bias(columns["bias"], vocabulary)
        if strengths:
            groups |= _penalties(strengths, columns.get("prompts"), columns.get("outputs"), vocabulary)
        if allowed is not None:
            groups["bitmask"] = _bitmask(listed("allowed", allowed), vocabulary)
        return cls(**{name: tensor.to(device) for name, tensor in groups.items()})


def adjusted(logits: Tensor, adjustments: LogitAdjustments, rows: Tensor, draft_token_ids: Tensor) -> Tensor:
    """The adjusted logits, a float32 copy [N, V].

    Args:
        logits: [N, V], any float type.
        adjustments: of B requests.
        rows: int64 [B, K + 1], each request's rows, padded with its last row. The result of rows without an owner is
            undefined.
        draft_token_ids: int64 [B, K]. Ids outside the vocabulary are ignored.
    """
    owner = torch.zeros(logits.size(0), dtype=torch.int64, device=logits.device)
    owner.scatter_(0, rows.flatten(), torch.arange(rows.numel(), device=rows.device) // rows.size(1))
    x = logits.to(torch.float32, copy=True)
    bias = (adjustments.bias_offsets, adjustments.bias_ids, adjustments.bias_values)
    if _given(bias):
        x += _dense(*bias, x.size(1))[owner]
    strengths = (adjustments.repetition, adjustments.frequency, adjustments.presence)
    seen = (adjustments.seen_offsets, adjustments.seen_ids, adjustments.seen_counts)
    if _given(strengths) and _given(seen):
        table = _dense(seen[0], seen[1], seen[2] + 1, x.size(1))[owner]
        r, f, p = (strength[owner, None] for strength in strengths)
        x = _penalised(x, r, f, p, table, _drafted_before(rows, draft_token_ids, x))
    if adjustments.bitmask is not None:
        tokens = torch.arange(x.size(1), device=x.device)
        words = adjustments.bitmask[:, tokens // 32]
        x = x.masked_fill_((words >> (tokens % 32)) & 1 == 0, -math.inf)
    return x


def _given(group: tuple[Tensor | None, Tensor | None, Tensor | None]) -> TypeGuard[tuple[Tensor, Tensor, Tensor]]:
    return all(tensor is not None for tensor in group)


def _penalised(
    x: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor, marks: Tensor, drafted: Tensor
) -> Tensor:
    """Apply the penalties [N, 1] to `x` [N, V], possibly in place. `marks` [N, V] is the count in the output so far
    plus 1, or 0 for a token that occurs neither in the output nor in the prompt. `drafted` [N, V] counts the tokens
    drafted before the row."""
    seen, counts = (marks > 0) | (drafted > 0), (marks - 1).clamp_(min=0) + drafted
    x = torch.where(seen, torch.where(x > 0, x / repetition, x * repetition), x)
    x -= frequency * counts
    x -= presence * (counts > 0)
    return x


def _drafted_before(rows: Tensor, draft_token_ids: Tensor, like: Tensor) -> Tensor:
    """Number of times each token was drafted before each row: float32, shaped as `like` [N, V]."""
    counts = torch.zeros_like(like)
    step = torch.arange(rows.size(1), device=rows.device)
    lasts = rows[:, :1] + step  # Past a request's end this is another request's row, which is not used.
    for earlier in range(draft_token_ids.size(1)):
        token = draft_token_ids[:, earlier : earlier + 1].expand(-1, rows.size(1))
        counted = (step > earlier) & (rows == lasts) & (token >= 0) & (token < like.size(1))
        counts.index_put_((rows[counted], token[counted]), torch.ones((), device=like.device), accumulate=True)
    return counts


def _dense(offsets: Tensor, ids: Tensor, values: Tensor, vocabulary: int) -> Tensor:
    """The entries of each request as a float32 table [B, V], 0 elsewhere."""
    table = torch.zeros(offsets.size(0) - 1, vocabulary, dtype=torch.float32, device=ids.device)
    request = torch.repeat_interleave(offsets.diff(), output_size=ids.size(0))
    table[request, ids.long()] = values.to(torch.float32)
    return table


def _check_sizes(columns: Mapping[str, Sequence[object]]) -> None:
    """Check that all columns have the same number of requests."""
    for name, values in columns.items():
        first = next(iter(columns))
        if len(values) != len(columns[first]):
            raise ValueError(f"{name} has {len(values)} requests, {first} has {len(columns[first])}")


def _bias(bias: Sequence[object], vocabulary: int) -> dict[str, Tensor]:
    pairs = []
    for i, entries in enumerate(bias):
        if not isinstance(entries, Mapping):
            raise ValueError(f"bias[{i}] = {entries!r}: must be a mapping from tokens to numbers")
        tokens = _tokens(f"bias[{i}]", entries, vocabulary)
        values = [number(f"bias[{i}][{token}]", value) for token, value in entries.items()]
        for token, value in zip(tokens, values, strict=True):
            if not (value == -math.inf or -LARGEST <= value <= LARGEST):  # also refuses NaN
                raise ValueError(f"bias[{i}][{token}] = {value}: must be a number below infinity that float32 holds")
        pairs.append(sorted(zip(tokens, values, strict=True)))
    return {
        "bias_offsets": _offsets(pairs),
        "bias_ids": _int32([token for entries in pairs for token, _ in entries]),
        "bias_values": torch.tensor([value for entries in pairs for _, value in entries], dtype=torch.float32),
    }


def _penalties(
    strengths: Mapping[str, Sequence[object]],
    prompts: Sequence[object] | None,
    outputs: Sequence[object] | None,
    vocabulary: int,
) -> dict[str, Tensor]:
    size = len(next(iter(strengths.values())))
    off = {"repetition": [1.0] * size, "frequency": [0.0] * size, "presence": [0.0] * size}
    checked = {name: _strengths(name, values) for name, values in strengths.items()}
    texts = {
        "prompts": [()] * size if prompts is None else prompts,
        "outputs": [()] * size if outputs is None else outputs,
    }
    ids = {
        name: [_tokens(f"{name}[{i}]", text, vocabulary) for i, text in enumerate(column)]
        for name, column in texts.items()
    }
    pairs = []
    for prompt, output in zip(ids["prompts"], ids["outputs"], strict=True):
        pairs.append(sorted((dict.fromkeys(prompt, 0) | Counter(output)).items()))
    return {
        **{name: torch.tensor(values, dtype=torch.float32) for name, values in (off | checked).items()},
        "seen_offsets": _offsets(pairs),
        "seen_ids": _int32([token for counted in pairs for token, _ in counted]),
        "seen_counts": _int32([count for counted in pairs for _, count in counted]),
    }


def _strengths(name: str, values: Sequence[object]) -> list[float]:
    least, wanted = (SMALLEST, "a finite number above 0") if name == "repetition" else (-LARGEST, "a finite number")
    checked = [number(f"{name}[{i}]", value) for i, value in enumerate(values)]
    for i, value in enumerate(checked):
        if not least <= value <= LARGEST:  # also refuses NaN
            raise ValueError(f"{name}[{i}] = {value}: must be {wanted} that float32 holds")
    return checked


def _bitmask(allowed: Sequence[object], vocabulary: int) -> Tensor:
    width = (vocabulary + 31) // 32
    mask = torch.zeros(len(allowed), width * 32, dtype=torch.bool)
    for row, tokens in enumerate(allowed):
        mask[row, range(vocabulary) if tokens is None else _tokens(f"allowed[{row}]", tokens, vocabulary)] = True
    words = (mask.view(len(allowed), width, 32) << torch.arange(32)).sum(-1)  # [N, words], 0 to 2^32 - 1
    return words.where(words < 2**31, words - 2**32).to(torch.int32)


def _tokens(name: str, tokens: object, vocabulary: int) -> list[int]:
    """`tokens` as integers, checked against the vocabulary."""
    ids = integers(name, tokens)
    for token in ids:
        if not 0 <= token < vocabulary:
            raise ValueError(f"{name} has token {token}: the vocabulary has {vocabulary} tokens")
    return ids


def _offsets(parts: Sequence[Sequence[object]]) -> Tensor:
    return _int32([0, *torch.tensor([len(part) for part in parts], dtype=torch.int64).cumsum(0).tolist()])


def _int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
