"""Margins: the gap between the target's two best logits at each token, for the requests that ask and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from slipstream_engine.contract.types import Chunk, SamplingParams, merge_chunks
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine.requests_and_answers import (
    GREEDY,
    PROMPT,
    Drain,
    Make,
    generation_request,
    text_of,
    tokens_of,
    without_engine_time,
)

_request = partial(generation_request, max_tokens=24)


class _Calls(TorchDispatchMode):
    """Counts the calls of one operator."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.count = 0
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += self._name in func.name()
        return func(*args, **(kwargs or {}))


@contextmanager
def _counted(name: str) -> Iterator[_Calls]:
    with _Calls(name) as calls:
        yield calls


def _margins(row: list[Chunk]) -> list[float]:
    return [gap for chunk in row for gap in chunk.margins or ()]


def _expected(folder: Path, tokens: list[int]) -> list[float]:
    """By transformers' logits over the whole answer at once."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder / "target").eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0]
    best = logits[len(PROMPT) - 1 : -1].topk(2).values
    return (best[:, 0] - best[:, 1]).tolist()


@pytest.mark.parametrize(("draft", "draft_tokens"), [(None, 0), ("close", 5), ("far", 3), ("ngram", 4)])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.0, top_k=5, seed=3)])
def test_margins_are_the_gaps_of_transformers_logits(
    make_engine: Make, drain: Drain, pair_folder: Path, draft: str | None, draft_tokens: int, sampling: SamplingParams
) -> None:
    """Beside a neighbour with another draft length, whose rows of logits lie before or after."""
    asked = _request("asked", margins=True, draft_tokens=draft_tokens, sampling=sampling)
    others = [_request("before", draft_tokens=2), _request("after", draft_tokens=0)]
    chunks = drain(make_engine(draft), [others[0], asked, others[1]])
    row = chunks["asked"]
    assert [len(chunk.margins or ()) for chunk in row] == [len(chunk.token_ids) for chunk in row]
    assert _margins(row) == pytest.approx(_expected(pair_folder, tokens_of(row)), abs=1e-3)
    assert {chunk.margins for name in ("before", "after") for chunk in chunks[name]} == {None}


def test_asking_does_not_change_the_answer(make_engine: Make, drain: Drain) -> None:
    plain, asked = (drain(make_engine("close"), [_request("a", draft_tokens=4, margins=m)])["a"] for m in (False, True))
    assert tokens_of(plain) == tokens_of(asked)
    counts = [[chunk.counts for chunk in without_engine_time(row)] for row in (plain, asked)]
    assert counts[0] == counts[1]


def test_a_step_without_a_request_that_asks_looks_for_no_second_best(make_engine: Make, drain: Drain) -> None:
    engine = make_engine("close")
    with _counted("aten::topk") as calls:
        drain(engine, [_request("a", draft_tokens=3), _request("b")])
        assert calls.count == 0
        drain(engine, [_request("c", margins=True)])
        assert calls.count > 0


def test_tokens_that_a_stop_string_cuts_off_have_no_margin(make_engine: Make, drain: Drain) -> None:
    engine = make_engine("close")
    whole = text_of(drain(engine, [_request("a")])["a"])
    row = drain(engine, [_request("b", draft_tokens=5, margins=True, stop=(whole[6:9],))])["b"]
    assert len(_margins(row)) == len(tokens_of(row)) < 24


def test_merged_chunks_keep_all_margins(make_engine: Make, drain: Drain) -> None:
    engine = make_engine(None)
    row = drain(engine, [_request("a", margins=True)])["a"]
    merged = merge_chunks(row)
    assert list(merged.margins or ()) == _margins(row)
    assert merge_chunks(drain(engine, [_request("b")])["b"]).margins is None


def test_cancelled_request_that_asked_ends_with_no_margins_more(make_engine: Make) -> None:
    engine = make_engine(None)
    engine.add(_request("a", margins=True))
    engine.step()
    last = engine.cancel("a")
    assert last is not None
    assert last.margins == ()
