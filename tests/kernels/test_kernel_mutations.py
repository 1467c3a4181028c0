"""Kernels with faults that serving engines have had: each emits another token than plain decoding.

A fault is put into a copy of the package's own source, which is then compiled or interpreted like the original.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.kernels.batches import make_request, verify_batch
from tests.kernels.checker import check
from tests.kernels.mutants import Fault, package_with
from tests.kernels.oracle import Rules

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DRAW, ROW = "spec_verify/kernel_draw.py", "spec_verify/kernel_row.py"
PLAIN = Rules()
PENALISED = Rules(repetition=1.6, frequency=0.8, presence=0.9, prompt=(1, 2))
FILTERED = Rules(top_k=5, top_p=0.8)

FAULTS = [
    (
        Fault(
            name="every draft is accepted",
            file=ROW,
            right="(token != drafted_token(step, request, j, length))",
            wrong="(j == length)",
        ),
        PLAIN,
        12,
    ),
    (
        Fault(
            name="the last end counts instead of the first",
            file=ROW,
            right="tl.atomic_max(statistics.end + request, -j + NO_END",
            wrong="tl.atomic_max(statistics.end + request, j - 3 + NO_END",
        ),
        PLAIN,
        12,
    ),
    (
        Fault(
            name="one token too many",
            file=ROW,
            right="emitted = tl.where(broken, 0, terminal + 1)",
            wrong="emitted = tl.where(broken, 0, tl.minimum(terminal + 2, draft_count + 1))",
        ),
        PLAIN,
        12,
    ),
    (
        Fault(
            name="row of the token before",
            file="spec_verify/kernel_scan.py",
            right="row = first_row(step, request) + j\n",
            wrong="row = first_row(step, request) + tl.maximum(j - 1, 0)\n",
        ),
        PLAIN,
        12,
    ),
    (
        Fault(
            name="noise of the step's first position for all its rows",
            file=DRAW,
            right="tl.load(step.positions + request) + j)",
            wrong="tl.load(step.positions + request))",
        ),
        PLAIN,
        12,
    ),
    (
        Fault(
            name="noise by slot",
            file=DRAW,
            right="key_of(tl.load(step.seed + request),",
            wrong="key_of(tl.load(step.seed + request) + request,",
        ),
        PLAIN,
        12,
    ),
    (
        Fault(
            name="groups and tokens share their noise",
            file=DRAW,
            right="winner(groups, key, GROUP, greedy, GROUP)",
            wrong="winner(groups, key, 0, greedy, GROUP)",
        ),
        PLAIN,
        400,
    ),
    (
        Fault(
            name="tiles and groups share their noise",
            file=DRAW,
            right="winner(tile_weights, key, 2 * GROUP, greedy, TILES)",
            wrong="winner(tile_weights, key, GROUP, greedy, TILES)",
        ),
        PLAIN,
        9000,
    ),
    (
        Fault(
            name="filters after the noise of tokens",
            file=DRAW,
            right="kept = tl.where(x >= least, exponentials(x, best, inverse_temperature), 0.0)",
            wrong="kept = exponentials(x, best, inverse_temperature)",
        ),
        FILTERED,
        12,
    ),
    (
        Fault(
            name="filters after the noise of tiles",
            file="spec_verify/kernel_filter_rows.py",
            right="kept = tl.where(x >= least, exponentials(x, best, inverse_temperature), 0.0)",
            wrong="kept = exponentials(x, best, inverse_temperature)",
        ),
        FILTERED,
        9000,
    ),
    (
        Fault(
            name="penalties blind to drafts",
            file="spec_verify/kernel_primitives.py",
            right="for earlier in range(step):",
            wrong="for earlier in range(0):",
        ),
        PENALISED,
        12,
    ),
]


def is_wrong(verify, requests):
    """Whether an answer is not plain decoding's, or its tensors contradict each other."""
    try:
        answers = verify_batch(verify, requests, device=DEVICE)
        for request, answer in zip(requests, answers, strict=True):
            check(request, answer)
    except AssertionError:
        return True
    return False


@pytest.mark.slow  # each imports a changed kernel in a process of its own
@pytest.mark.parametrize(("fault", "rules", "vocabulary"), FAULTS, ids=lambda value: getattr(value, "name", None))
def test_a_fault_in_the_kernel_emits_another_token(tmp_path, fault, rules, vocabulary):
    verify = partial(package_with(fault, tmp_path).verify, backend="kernel")
    requests = [make_request(number, vocabulary=vocabulary, drafts=3, rules=rules) for number in range(16)]
    # A few at a time: most faults show in the first, and the interpreter is slow.
    assert any(is_wrong(verify, requests[first : first + 4]) for first in range(0, len(requests), 4))
