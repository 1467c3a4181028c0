"""A request's tokens do not depend on its slot, its neighbours, the padding, how rows are cut up, or which program of
the kernel happens to run first."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from slipstream_kernels import verify

from tests.kernels.batches import make_request, verify_batch
from tests.kernels.interpreter import programs_in_random_order
from tests.kernels.oracle import Rules

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
VOCABULARY = 20_011 if CUDA else 5003
KINDS = (
    Rules(),
    Rules(temperature=0.0),
    Rules(temperature=0.7, top_k=30, top_p=0.9),
    Rules(temperature=1.5, min_p=0.05, repetition=1.3, presence=0.4, prompt=(3, 7), bias={5: 2.0}),
)


@cache
def requests(drafts_up_to=3):
    """Each kind twice, with drafts of unlike lengths."""
    return tuple(
        make_request(
            number, vocabulary=VOCABULARY, drafts=(number + 1) % (drafts_up_to + 1), rules=rules, written=(2, 3, 2)
        )
        for number, rules in enumerate((*KINDS, *KINDS), 1)
    )


def run(batch, backend="kernel", **options):
    return verify_batch(partial(verify, backend=backend), batch, device=DEVICE, **options)


@cache
def alone(backend):
    """Each request in a batch of its own."""
    return [run([request], backend)[0] for request in requests()]


def same(found, expected):
    """The same tokens."""
    assert [a.tokens for a in found] == [a.tokens for a in expected]


@pytest.mark.parametrize("backend", ["reference", "kernel"])
def test_slots_neighbours_and_padding_change_nothing(backend):
    batch = requests()
    same(run(batch, backend), alone(backend))
    order = random.Random(4).sample(range(len(batch)), len(batch))
    same(run([batch[i] for i in order], backend, drafted=5, gap=2), [alone(backend)[i] for i in order])


def test_the_number_of_programs_changes_nothing():
    from slipstream_kernels.spec_verify.kernel import LaunchConfig, verify_kernel

    found = verify_batch(partial(verify_kernel, config=LaunchConfig(splits=2)), requests(), device=DEVICE)
    same(found, alone("kernel"))


def test_the_seed_and_the_position_do_matter():
    batch = [replace(r, drafts=[], logits=r.logits[:1]) for r in requests()[:1]] * 8
    for name in ("seed", "position"):
        moved = [replace(request, **{name: 1000 + 7 * i}) for i, request in enumerate(batch)]
        assert len({answer.tokens[0] for answer in run(moved)}) > 1


@pytest.mark.skipif(CUDA, reason="a GPU runs its programs in an order of its own")
@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_programs_gives_the_same(seed):
    with programs_in_random_order(seed):
        same(run(requests()), alone("kernel"))


@pytest.mark.skipif(not CUDA, reason="needs programs that run at the same time")
def test_a_thousand_repetitions_give_the_same():
    batch = [replace(request, seed=seed) for seed in range(64) for request in requests()]
    expected = [answer.tokens for answer in run(batch)]
    for _ in range(1000):
        assert [answer.tokens for answer in run(batch)] == expected
