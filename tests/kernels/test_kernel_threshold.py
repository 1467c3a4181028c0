"""The launch that finds what filters keep: exactly what the definition keeps, whatever the row looks like and however
the search goes; and the mass of it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_kernels import SamplingBatch
from slipstream_kernels.spec_verify import kernel, launch_after_scan
from slipstream_kernels.spec_verify.kernel_arguments import Adjustments, Drafts, Filters, Launch, Statistics, Step
from slipstream_kernels.spec_verify.kernel_config import LaunchConfig
from slipstream_kernels.spec_verify.workspace import Needs, Workspace
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXAMPLES = 2000 if DEVICE == "cuda" else 40
MASS_TOLERANCE = 1e-6
"""What float32 may get wrong of a row's probability: so near a multiple of top-p, either side is right."""

Rule = tuple[float, int, float, float]
"""Temperature, top-k, top-p, min-p."""


def search(logits: Tensor, rules: Iterable[Rule], *, programs: int, held: int) -> Statistics:
    """What the kernel writes for rows `logits` [N, V] of N requests without drafts."""
    heat, top_k, top_p, min_p = zip(*rules, strict=True)
    requests, vocabulary = logits.shape
    sampling = SamplingBatch.of(heat, top_p, top_k, [0] * requests, DEVICE, min_p=min_p)
    needs = Needs(requests=requests, draft_count=0, tiles=-(-vocabulary // 128), filters=True)
    statistics = Workspace.of(needs, torch.device(DEVICE)).statistics(needs)
    statistics = statistics._replace(candidates=torch.full((programs, held), math.nan, device=DEVICE))
    nothing = torch.zeros(requests, dtype=torch.int64, device=DEVICE)
    logits = logits.to(DEVICE)
    launch = Launch(
        step=Step(
            logits, logits.stride(0), vocabulary, None, nothing, 1, nothing, sampling.temperature, nothing, nothing
        ),
        drafts=Drafts(),
        adjustments=Adjustments(),
        filters=Filters.of(sampling),
        statistics=statistics,
        outputs=kernel._outputs(requests, 1, False, torch.device(DEVICE)),
        requests=requests,
        draft_count=0,
        tiles=needs.tiles,
        draft_tiles=0,
        block_rule=False,
        config=LaunchConfig(block=128, splits=1, warps=1),
    )
    kernel.launch_scan(launch)
    launch_after_scan.threshold_call(launch).launch()
    return statistics


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


def check(logits: Tensor, rules: list[Rule], *, programs: int = 2, held: int = 64) -> None:
    statistics = search(logits, rules, programs=programs, held=held)
    for i, rule in enumerate(rules):
        x = logits[i].float()
        kept = (x >= statistics.threshold[i].cpu()) & (x > -math.inf)
        _, choices = kept_by_definition(logits[i], rule)
        found = [torch.equal(kept, choice & (x > -math.inf)) for choice in choices]
        assert any(found), (i, rule, int(kept.sum()), [int(choice.sum()) for choice in choices])
        temperature = float(torch.tensor(rule[0], dtype=torch.float32))
        weights = ((x.double() - x.double().max()) / temperature).exp()
        assert float(statistics.kept_mass[i]) == pytest.approx(float(weights[kept].sum()), rel=MASS_TOLERANCE)


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
    statistics = search(logits, [(1.0, 61, 1.0, 0.0)], programs=1, held=16)
    assert float(statistics.threshold[0]) == 4.0
    assert float(statistics.kept_mass[0]) == pytest.approx(60 + 180 * math.exp(-1), rel=MASS_TOLERANCE)


def test_top_p_of_0_keeps_the_best_and_its_equals() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0]])
    statistics = search(logits, [(1.0, 0, 0.0, 0.0)], programs=1, held=16)
    assert float(statistics.threshold[0]) == 2.0
    assert float(statistics.kept_mass[0]) == 3.0


def test_neighbouring_floats_are_told_apart() -> None:
    """The search is exact to the last bit: candidates do not fit, so the bracket closes on one float."""
    steps = torch.arange(200, dtype=torch.int32) - 100
    logits = (torch.tensor(1.5).view(torch.int32) + steps).view(torch.float32)[None].repeat(1, 2)
    statistics = search(logits, [(1.0, 100, 1.0, 0.0)], programs=1, held=16)
    assert float(statistics.threshold[0]) == float(logits[0].sort(descending=True).values[99])


def test_more_rows_than_programs_are_taken_in_turn() -> None:
    logits = 2 * torch.randn(7, 200, generator=torch.Generator().manual_seed(3))
    check(logits, [(1.0, 1 + 3 * i, 0.9, 0.0) for i in range(7)], programs=2)
    check(logits, [(1.0, 1 + 3 * i, 0.9, 0.0) for i in range(7)], programs=7)
