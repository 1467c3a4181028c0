"""The launches that end what the scan cannot: where the last token comes from, what they leave behind, and what the
compiler makes of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import triton
from slipstream_kernels import Purpose, uniform
from slipstream_kernels.spec_verify.kernel import LaunchConfig, verify_kernel
from slipstream_kernels.spec_verify.workspace import Workspace

from tests.kernels.batches import Request, make_request, verify_batch
from tests.kernels.checker import check
from tests.kernels.interpreter import programs_in_random_order, run_compiling
from tests.kernels.oracle import Rules

pytestmark = pytest.mark.timeout(600)  # the compiler's time, on a busy machine

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = LaunchConfig(block=128, splits=1, warps=1)
FILTERS = Rules(temperature=0.8, top_k=30, top_p=0.9, min_p=0.01)

run = partial(verify_batch, partial(verify_kernel, config=SMALL), device=DEVICE)


def mixed(vocabulary: int = 300, width: int | None = None, dtype: torch.dtype = torch.bfloat16) -> list[Request]:
    """Requests of every kind: simple, filtered, with sampled drafts and without, greedy, without drafts."""
    make = partial(make_request, vocabulary=vocabulary, width=width, dtype=dtype)
    return [
        make(1, drafts=3),
        make(2, drafts=3, rules=FILTERS),
        make(3, drafts=2, rules=FILTERS).one_hot(),
        make(4, drafts=3).one_hot(),
        make(5, drafts=2, rules=Rules(temperature=0.0)),
        make(6, drafts=0, rules=FILTERS),
        make(7, drafts=0),
        make(8, drafts=1, rules=Rules(temperature=1.2, min_p=0.05)),
    ]


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("width", [200, 300, 421])
def test_all_kinds_beside_each_other(block: bool, width: int) -> None:
    """Also where the draft's vocabulary is smaller or larger than the target's."""
    batch = mixed(width=width)
    answers = run(requests=batch, block_verification=block, margins=True)
    exempted = [check(request, answer, block=block) for request, answer in zip(batch, answers, strict=True)]
    assert sum(exempted) <= 1


@pytest.mark.skipif(DEVICE == "cuda", reason="only the interpreter runs programs in an order of choice")
@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_programs_gives_the_same(block: bool, seed: int) -> None:
    batch = mixed(vocabulary=500)
    expected = run(requests=batch, block_verification=block)
    with programs_in_random_order(seed):
        assert run(requests=batch, block_verification=block) == expected


@pytest.mark.parametrize("block", [False, True])
def test_counters_and_state_are_zero_again(block: bool) -> None:
    workspace = Workspace(
        8, 3, 300, draft_vocabulary=300, filters=True, block_verification=True, block=128, device=DEVICE
    )
    backend = partial(verify_kernel, config=SMALL, workspace=workspace)
    answers = [verify_batch(backend, mixed(), device=DEVICE, block_verification=block) for _ in range(2)]
    assert answers[0] == answers[1]
    assert not workspace._state.any()
    assert not workspace._counters.any()


def test_a_drafted_token_that_filters_drop_is_rejected_and_takes_nothing_from_the_rest() -> None:
    """p of it is 0 already: what is drawn comes from all that is kept."""
    made = make_request(11, vocabulary=300, drafts=1, rules=Rules(top_k=5))
    worst = int(made.logits[0].argmin())
    for request in (replace(made, drafts=[worst]), replace(made, drafts=[worst]).one_hot()):
        requests = [replace(request, seed=seed) for seed in range(20)]
        answers = run(requests=requests)
        best = set(made.logits[0].topk(5).indices.tolist())
        assert all(len(answer.tokens) == 1 and answer.tokens[0] in best for answer in answers)
        assert len({answer.tokens[0] for answer in answers}) > 1
        for asked, answer in zip(requests, answers, strict=True):
            check(asked, answer)


def test_without_a_residual_the_token_comes_from_the_target() -> None:
    """The draft is equal to the target, and the drafted token is one that the target does not have."""
    for vocabulary in (4, 256):
        logits = torch.zeros(2, vocabulary)
        stray = Request(logits=logits, drafts=[vocabulary + 3], draft_logits=logits[:1])
        requests = [replace(stray, seed=seed) for seed in range(8)]
        answers = run(requests=requests)
        numbers = [float(uniform(torch.tensor(s), torch.tensor(0), Purpose.RESIDUAL)) for s in range(8)]
        assert [answer.tokens for answer in answers] == [[int(number * vocabulary)] for number in numbers]


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_of_the_draft_without_a_distribution_counts_as_one_hot(block: bool, poison: float) -> None:
    made = make_request(21, vocabulary=200, drafts=3)
    draft_logits = made.draft_logits.clone()
    draft_logits[1] = -math.inf
    if poison != -math.inf:
        draft_logits[1, 77] = poison
    requests = [replace(made, draft_logits=draft_logits, seed=seed, drafts=[5, 6, 7]) for seed in range(6)]
    best = made.logits.argmax(-1)[:-1].tolist()
    requests += [replace(request, drafts=best) for request in requests]
    for request, answer in zip(requests, run(requests=requests, block_verification=block), strict=True):
        check(request, answer, block=block)


@pytest.mark.parametrize("block", [False, True])
def test_a_broken_row_fails_its_request_where_it_is_read(block: bool) -> None:
    """By the standard rule only if no draft before it was rejected; by the block rule always."""
    broken = []
    for request in mixed():
        logits = request.logits.clone()
        logits[-1, 123] = math.nan
        broken.append(replace(request, logits=logits))
    batch = [one for pair in zip(broken, mixed(), strict=True) for one in pair]
    for request, answer in zip(batch, run(requests=batch, block_verification=block), strict=True):
        check(request, answer, block=block)


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, int]]:
    """Figures of each kernel, from a process in which kernels are compiled and not interpreted."""
    return json.loads(run_compiling("-m", "tests.kernels.after_scan_ahead_of_time"))


def test_next_to_nothing_is_spilled_where_logits_are_read_as_they_are(compiled: dict[str, dict[str, int]]) -> None:
    plain = {name: figures for name, figures in compiled.items() if name.startswith("plain")}
    assert len(plain) >= 6
    for name, figures in plain.items():
        # Nothing at all by the compiler of triton 3.6; later ones choose other registers, and spill a few.
        stack, spills = (0, 0) if triton.__version__.startswith("3.6.") else (48, 8)
        assert figures["stack"] <= stack, name
        assert figures["spills"] <= spills, name


def test_every_kernel_fits_a_processor_and_loads_16_bytes_at_a_time(compiled: dict[str, dict[str, int]]) -> None:
    for name, figures in compiled.items():
        assert figures["registers"] * figures["threads"] <= 65_536, name
        assert figures["wide_loads"] > 0, name
