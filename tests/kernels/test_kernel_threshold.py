"""The launch that finds what filters keep: exactly what the definition keeps, whatever the row looks like and however
the search goes; and the mass of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_kernels import SamplingBatch
from slipstream_kernels.spec_verify import kernel
from slipstream_kernels.spec_verify.kernel import verify_kernel
from slipstream_kernels.spec_verify.kernel_filter_rows import weigh_tiles
from slipstream_kernels.spec_verify.kernel_row import combine_tiles
from slipstream_kernels.spec_verify.kernel_threshold import threshold
from slipstream_kernels.spec_verify.kernel_tile import inverse_temperature_of
from torch import Tensor

from tests.kernels.batches import make_request, verify_batch
from tests.kernels.checker import check as check_request
from tests.kernels.oracle import Rules

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXAMPLES = 2000 if DEVICE == "cuda" else 40
MASS_TOLERANCE = 1e-6
"""What float32 may get wrong of a row's probability: so near a multiple of top-p, either side is right."""

Rule = tuple[float, int, float, float]
"""Temperature, top-k, top-p, min-p."""


class Kept(NamedTuple):
    """What the second launch finds for each of N rows, on the CPU."""

    least: Tensor
    """float32 [N], the smallest kept logit."""
    mass: Tensor
    """float32 [N], the sum of exp((x - best) / T) over the kept tokens."""


@triton.jit
def probe(
    step, adjustments, filters, statistics, least, mass, tiles, VECTOR: tl.constexpr, TILES: tl.constexpr,
    SEARCH_BLOCK: tl.constexpr, HELD: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """As `kernel_filter_rows` for one row per program, without the draw."""
    request = tl.program_id(0)
    j, row = request * 0, request.to(tl.int64)
    heat = inverse_temperature_of(tl.load(step.temperature + request))
    best, whole, maxima, _ = combine_tiles(statistics, row, tiles, heat, TILES)
    value = threshold(
        step, adjustments, filters, statistics, request, j, row, best, whole, maxima, heat,
        SEARCH_BLOCK, VECTOR, HELD, SHIFT,
    )  # fmt: skip
    weights = weigh_tiles(
        step, adjustments, statistics, request, j, row, row, best, value, heat, tiles, VECTOR, TILES
    )  # fmt: skip
    tl.store(least + request, value)
    tl.store(mass + request, tl.sum(weights, 0))


def search(logits: Tensor, rules: Iterable[Rule], *, held: int, block: int = 128) -> Kept:
    """What the kernel finds in rows `logits` [N, V] of N requests without drafts."""
    heat, top_k, top_p, min_p = zip(*rules, strict=True)
    requests = len(logits)
    sampling = SamplingBatch.of(heat, top_p, top_k, [0] * requests, DEVICE, min_p=min_p)
    nothing = torch.zeros(requests, dtype=torch.int64, device=DEVICE)
    launch = kernel.prepare(logits.to(DEVICE), nothing[:, None][:, :0], nothing, sampling, nothing)
    kernel.scan_call(launch).launch()
    statistics = launch.statistics._replace(candidates=torch.full((requests, held), math.nan, device=DEVICE))
    call = kernel.filter_call(replace(launch, statistics=statistics))
    constants = {name: value for name, value in call.constants.items() if name not in ("STEPS", "LAZY")}
    found = Kept(torch.empty(requests, device=DEVICE), torch.empty(requests, device=DEVICE))
    probe[(requests,)](
        launch.step, launch.adjustments, launch.filters, statistics, *found, launch.tiles,
        **(constants | {"SEARCH_BLOCK": block}), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return Kept(*(part.cpu() for part in found))


def kept_by_definition(logits: Tensor, rule: Rule) -> tuple[Tensor, list[Tensor]]:
    """What one row keeps, bool [V], and what else it might keep if masses were off by as much as float32 may be."""
    temperature, top_k, top_p, min_p = rule
    temperature, top_p, min_p = torch.tensor([temperature, top_p, min_p], dtype=torch.float32).double().tolist()
    x = logits.float().double()
    weights = ((x - x.max()) / temperature).exp()
    kept = torch.ones_like(x, dtype=torch.bool)
    if 0 < top_k < len(x):
        kept &= x >= x.sort(descending=True).values[top_k - 1]
    if min_p > 0:
        cut = x.max() + temperature * math.log(min_p)
    choices = []
    for slack in (0.0, -MASS_TOLERANCE, MASS_TOLERANCE):
        nucleus = kept.clone()
        if top_p < 1:
            values = x[kept].unique()
            above = torch.stack([(weights * (kept & (x > value))).sum() for value in values]) / (weights * kept).sum()
            inside = values[(above < top_p + slack) | (values == values[-1])]
            nucleus &= x >= inside.min()
        if min_p > 0:
            nucleus &= x >= cut - slack * max(1.0, abs(float(cut)))
        choices.append(nucleus)
    return choices[0], choices


def check(logits: Tensor, rules: list[Rule], *, held: int = 64) -> None:
    found = search(logits, rules, held=held)
    for i, rule in enumerate(rules):
        x = logits[i].float()
        kept = (x >= found.least[i]) & (x > -math.inf)
        _, choices = kept_by_definition(logits[i], rule)
        right = [torch.equal(kept, choice & (x > -math.inf)) for choice in choices]
        assert any(right), (i, rule, int(kept.sum()), [int(choice.sum()) for choice in choices])
        temperature = float(torch.tensor(rule[0], dtype=torch.float32))
        weights = ((x.double() - x.double().max()) / temperature).exp()
        assert float(found.mass[i]) == pytest.approx(float(weights[kept].sum()), rel=MASS_TOLERANCE)


def filtering(vocabulary: int) -> st.SearchStrategy[Rule]:
    """Rules that filter at least by one thing."""
    heat = st.sampled_from([1.0, 0.7, 2.5, 0.01, 100.0])
    top_k = st.one_of(st.just(0), st.integers(1, max(1, vocabulary - 1)))
    top_p = st.sampled_from([1.0, 0.0, 0.3, 0.9, 0.95, 0.999])
    min_p = st.sampled_from([0.0, 0.0, 0.001, 0.1, 1.0])
    return st.tuples(heat, top_k, top_p, min_p).filter(
        lambda rule: 0 < rule[1] < vocabulary or rule[2] < 1 or rule[3] > 0
    )


SHAPES = ["normal", "few values", "one value", "huge", "log-probabilities", "masked", "one finite", "peaked", "signed"]


def row_of(shape: str, vocabulary: int, generator: torch.Generator) -> Tensor:
    """A row of logits, float32 [V]."""
    normal = torch.randn(vocabulary, generator=generator)
    if shape == "few values":
        return torch.randint(-2, 3, (vocabulary,), generator=generator).float()
    if shape == "one value":
        return torch.full((vocabulary,), -3.25)
    if shape == "huge":
        return normal * 1e30
    if shape == "log-probabilities":
        return (4 * normal).log_softmax(-1) - 100
    if shape == "masked":
        return normal.masked_fill(torch.rand(vocabulary, generator=generator) < 0.9, -math.inf).scatter_(
            0, torch.tensor([vocabulary - 1]), 1.0
        )
    if shape == "one finite":
        return torch.full((vocabulary,), -math.inf).scatter_(0, torch.tensor([vocabulary // 2]), -7.0)
    if shape == "peaked":
        return normal.scatter_(0, torch.tensor([vocabulary // 3]), 40.0)
    if shape == "signed":
        return torch.where(normal > 0.5, 0.0, torch.where(normal < -0.5, -0.0, normal * 1e-30))
    return 3 * normal


@settings(derandomize=True, deadline=None, max_examples=EXAMPLES)
@given(data=st.data())
def test_keeps_what_the_definition_keeps(data: st.DataObject) -> None:
    vocabulary = data.draw(st.sampled_from([1, 2, 5, 127, 128, 129, 300]))
    if vocabulary == 1:
        rules = [(1.0, 0, 0.5, 0.0)]
    else:
        rules = data.draw(st.lists(filtering(vocabulary), min_size=1, max_size=4))
    shapes = data.draw(st.lists(st.sampled_from(SHAPES), min_size=len(rules), max_size=len(rules)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    logits = torch.stack([row_of(shape, vocabulary, generator) for shape in shapes]).to(dtype)
    check(logits, rules, held=data.draw(st.sampled_from([16, 512])))


@pytest.mark.parametrize(("dtype", "held"), [(torch.float32, 16), (torch.bfloat16, 32), (torch.float16, 1024)])
def test_rows_of_many_tiles(dtype: torch.dtype, held: int) -> None:
    logits = (3 * torch.randn(6, 1501, generator=torch.Generator().manual_seed(1))).to(dtype)
    rules = [
        (1.0, 0, 0.9, 0.0),
        (0.7, 50, 1.0, 0.0),
        (1.5, 1000, 0.95, 0.0),
        (2.0, 0, 0.99, 0.001),
        (1.0, 1500, 1.0, 0.0),
        (1.0, 40, 0.9, 0.05),
    ]
    check(logits, rules, held=held)


def test_ties_at_the_last_place_are_all_kept() -> None:
    logits = torch.tensor([5.0, 4.0, 4.0, 4.0, 3.0]).repeat(1, 60).roll(7, 1)
    found = search(logits, [(1.0, 61, 1.0, 0.0)], held=16)
    assert float(found.least[0]) == 4.0
    assert float(found.mass[0]) == pytest.approx(60 + 180 * math.exp(-1), rel=MASS_TOLERANCE)


def test_top_p_of_0_keeps_the_best_and_its_equals() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0]])
    found = search(logits, [(1.0, 0, 0.0, 0.0)], held=16)
    assert float(found.least[0]) == 2.0
    assert float(found.mass[0]) == 3.0


def test_neighbouring_floats_are_told_apart() -> None:
    """The search is exact to the last bit: candidates do not fit, so the bracket closes on one float."""
    steps = torch.arange(200, dtype=torch.int32) - 100
    logits = (torch.tensor(1.5).view(torch.int32) + steps).view(torch.float32)[None].repeat(1, 2)
    found = search(logits, [(1.0, 100, 1.0, 0.0)], held=16)
    assert float(found.least[0]) == float(logits[0].sort(descending=True).values[99])


def test_more_rows_than_programs_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [
        make_request(number, vocabulary=200, drafts=2, rules=Rules(top_k=1 + 3 * number, top_p=0.9))
        for number in range(4)
    ]
    call = kernel.filter_call
    monkeypatch.setattr(kernel, "filter_call", lambda launch: replace(call(launch), programs=2))
    answers = verify_batch(verify_kernel, batch, device=DEVICE)
    assert not any(check_request(request, answer) for request, answer in zip(batch, answers, strict=True))
