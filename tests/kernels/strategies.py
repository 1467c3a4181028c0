"""Generated batches: ties, tokens at -inf, broken rows, half precision, adjustments, draft lengths from 0."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.batches import Request, make_request
from tests.kernels.oracle import Rules

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@st.composite
def greedy_batches(draw: st.DrawFn) -> list[Request]:
    """Requests at temperature 0 whose rows have many equal logits; most drafts are what the target would choose."""
    vocabulary = draw(st.one_of(st.sampled_from([1, 2, 31, 32, 33]), st.integers(1, 150)))
    dtype = draw(st.sampled_from(DTYPES))
    return [
        _greedy_request(draw, number, vocabulary, dtype)
        for number in draw(st.lists(st.integers(0, 2**32), min_size=1, max_size=3))
    ]


def _greedy_request(draw: st.DrawFn, number: int, vocabulary: int, dtype: torch.dtype) -> Request:
    generator = torch.Generator().manual_seed(number)
    drafts = draw(st.integers(0, 8))
    logits = _tied(drafts + 1, vocabulary, draw(st.sampled_from([0, 1, 40])), generator).to(dtype)
    request = Request(
        logits=logits,
        drafts=torch.randint(0, vocabulary, (drafts,), generator=generator).tolist(),
        rules=draw(rules(vocabulary, temperatures=(0.0,))),
        seed=number,
        position=number % 50,
        written=tuple(draw(st.lists(st.integers(0, vocabulary - 1), max_size=4))),
        allowed=_grammar(drafts + 1, vocabulary, generator) if draw(st.booleans()) else None,
    )
    return request.agreeing(0.85)


@st.composite
def sampled_batches(draw: st.DrawFn, *, vocabulary: int, temperatures: tuple[float, ...]) -> list[Request]:
    """Requests of all kinds beside each other; most drafts are what plain decoding would choose."""
    dtype = draw(st.sampled_from(DTYPES))
    adjusting = draw(st.booleans())
    requests = []
    for number in draw(st.lists(st.integers(0, 2**32), min_size=1, max_size=4)):
        generator = torch.Generator().manual_seed(number)
        drafts = draw(st.integers(0, 4))
        changes: dict[str, Any] = {"rules": draw(rules(vocabulary, temperatures=temperatures, adjusting=adjusting))}
        changes["written"] = tuple(draw(st.lists(st.integers(0, vocabulary - 1), max_size=4)))
        if adjusting and draw(st.booleans()):
            changes["allowed"] = _grammar(drafts + 1, vocabulary, generator)
        request = make_request(number, vocabulary=vocabulary, drafts=drafts, dtype=dtype, **changes)
        if draw(st.integers(0, 5)) == 0:
            request = replace(request, logits=_broken(request, draw))
        requests.append(request)
    return requests


def _broken(request: Request, draw: st.DrawFn) -> Tensor:
    """Its logits with NaN or +inf at one token of a row, often the drafted one, or with a row of nothing but -inf."""
    logits = request.logits.clone()
    row, poison = draw(st.integers(0, len(logits) - 1)), draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    drafted = request.drafts[row] if row < len(request.drafts) and draw(st.booleans()) else 0
    logits[row, slice(None) if poison == -math.inf else drafted] = poison
    return logits


@st.composite
def rules(draw: st.DrawFn, vocabulary: int, *, temperatures: tuple[float, ...], adjusting: bool = True) -> Rules:
    """One request's parameters; half of the requests adjust nothing."""
    filters: dict[str, Any] = {}
    if draw(st.booleans()):
        filters["top_k"] = draw(st.sampled_from([0, 1, min(2, vocabulary), min(20, vocabulary), vocabulary]))
        filters["top_p"] = draw(st.sampled_from([0.0, 0.4, 0.9, 0.99, 1.0]))
        filters["min_p"] = draw(st.sampled_from([0.0, 0.01, 0.2, 1.0]))
    if adjusting and draw(st.booleans()):
        tokens = st.integers(0, vocabulary - 1)
        weights = st.sampled_from([-math.inf, -4.0, -0.25, 0.5, 3.0])
        filters["bias"] = draw(st.dictionaries(tokens, weights, max_size=3))
        filters["repetition"] = draw(st.sampled_from([1.0, 1.3, 0.8]))
        filters["frequency"] = draw(st.sampled_from([0.0, 0.25, -0.7]))
        filters["presence"] = draw(st.sampled_from([0.0, 0.5, 0.3]))
        filters["prompt"] = tuple(draw(st.lists(tokens, max_size=4)))
    return Rules(temperature=draw(st.sampled_from(temperatures)), **filters)


def _tied(rows: int, vocabulary: int, spread: int, generator: torch.Generator) -> Tensor:
    """Logits in quarters within ±`spread` / 4, a tenth of them at -inf; a row now and then is broken."""
    logits = torch.randint(-spread, spread + 1, (rows, vocabulary), generator=generator) / 4
    logits[torch.rand(rows, vocabulary, generator=generator) < 0.1] = -math.inf
    broken = torch.rand(rows, generator=generator)
    logits[broken < 0.03, vocabulary // 2] = math.nan
    logits[broken > 0.97, vocabulary // 3] = math.inf
    return logits


def _grammar(rows: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Which tokens are allowed in each row, bool; hardly ever none."""
    return torch.rand(rows, vocabulary, generator=generator) < 0.7
