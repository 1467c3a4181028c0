"""Kernels with faults that serving engines have had: each fails the measurement, or the comparison token by token, that
the sound ones pass.

A fault is put into a copy of the package's own source, which is then compiled or interpreted like the original.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.kernels.batches import make_request, verify_batch
from tests.kernels.cases import LEVEL
from tests.kernels.checker import check
from tests.kernels.generation import Case, expected, first_two_tokens
from tests.kernels.goodness import p_value
from tests.kernels.mutants import Fault, package_with
from tests.kernels.oracle import Rules

CUDA = torch.cuda.is_available()

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            name="accept always",
            file="spec_verify/kernel_finish_row.py",
            right="accepted = u * q.to(tl.float64) * whole.to(tl.float64) < weight.to(tl.float64)",
            wrong="accepted = u < 2.0",
        ),
        Fault(
            name="draft probability forgotten",
            file="spec_verify/kernel_finish_row.py",
            right="u * q.to(tl.float64) * whole",
            wrong="u * whole",
        ),
        Fault(
            name="residual keeps the drafted token",
            file="spec_verify/kernel_emit.py",
            right='x = tl.where(ids == drafted, float("-inf"), x)',
            wrong="x = x + 0.0",
        ),
        Fault(
            name="shared noise of acceptance and residual",
            file="spec_verify/kernel_primitives.py",
            right="RESIDUAL = tl.constexpr(int(Purpose.RESIDUAL))",
            wrong="RESIDUAL = tl.constexpr(int(Purpose.ACCEPT))",
        ),
        Fault(
            name="residual not clipped",
            file="spec_verify/kernel_residual.py",
            right="weights = tl.maximum(weights - q, 0.0)",
            wrong="weights = tl.abs(weights - q)",
        ),
        Fault(
            name="residual keeps the draft's distribution",
            file="spec_verify/kernel_residual.py",
            right="weights = tl.maximum(weights - q, 0.0)",
            wrong="weights = tl.maximum(weights, 0.0)",
        ),
        Fault(
            name="residual of the target before its filters",
            file="spec_verify/kernel_residual.py",
            right="tl.where(x >= least, exponentials(x, best, inverse_temperature) * share, 0.0)",
            wrong="exponentials(x, best, inverse_temperature) * share",
        ),
        Fault(
            name="last token of the row before",
            file="spec_verify/kernel_residual.py",
            right="row = first_row(step, request) + j",
            wrong="row = first_row(step, request) + tl.maximum(j - 1, 0)",
        ),
        Fault(
            name="the block's residual without the block's probability",
            file="spec_verify/kernel_residual.py",
            right="tl.load(statistics.draft_scale + request) * share",
            wrong="share",
        ),
        Fault(
            name="the next step takes a discarded block's numbers again",
            file="spec_verify/kernel_primitives.py",
            right="PURPOSES = tl.constexpr(len(Purpose))",
            wrong="PURPOSES = tl.constexpr(0)",
        ),
        Fault(
            name="penalties that ignore the drafts in the row",
            file="spec_verify/kernel_primitives.py",
            right="for earlier in range(step):",
            wrong="for earlier in range(0):",
        ),
    )
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "draft", "requests"),
    [
        ("accept always", "greedy", 100),
        ("draft probability forgotten", "free", 150),
        # The interpreter has no time for the hundreds of requests that show these: there, the test below finds them.
        *(
            [
                ("residual keeps the drafted token", "lookup", 0),
                ("shared noise of acceptance and residual", "greedy", 0),
            ]
            if CUDA
            else []
        ),
    ],
)
def test_a_fault_in_the_kernel_is_found_by_its_distribution(tmp_path, fault, draft, requests):
    case = Case(name=f"kernel, {draft}", draft=draft, drafted=1, ragged=False)
    case = case.on("cuda", 50_000) if CUDA else case.on("cpu", requests)
    tokens = first_two_tokens(case, api=package_with(FAULTS[fault], tmp_path), backend="kernel")
    assert p_value(tokens, expected(case)) < LEVEL


def check_all(requests, answers, *, block):
    for request, answer in zip(requests, answers, strict=True):
        check(request, answer, block=block)


def is_wrong(verify, requests, *, block):
    answers = verify_batch(verify, requests, device="cuda" if CUDA else "cpu", block_verification=block)
    try:
        check_all(requests, answers, block=block)
    except AssertionError:
        return True
    return False


PENALISED = Rules(repetition=1.6, frequency=0.8, presence=0.9, prompt=(1, 2))
FILTERED = Rules(top_k=5, top_p=0.8)


@pytest.mark.parametrize(
    ("fault", "rules", "one_hot", "block"),
    [
        ("accept always", Rules(), True, False),
        ("accept always", Rules(), False, False),
        ("draft probability forgotten", Rules(), False, False),
        ("residual keeps the drafted token", Rules(), True, False),
        ("shared noise of acceptance and residual", Rules(), True, False),
        ("shared noise of acceptance and residual", Rules(), False, False),
        ("residual not clipped", Rules(), False, False),
        ("residual keeps the draft's distribution", Rules(), False, False),
        ("residual of the target before its filters", FILTERED, False, False),
        ("last token of the row before", Rules(), False, False),
        ("the block's residual without the block's probability", Rules(), False, True),
        ("the next step takes a discarded block's numbers again", Rules(), True, True),
        ("penalties that ignore the drafts in the row", PENALISED, True, False),
    ],
)
def test_a_fault_in_the_kernel_is_found_token_by_token(tmp_path, fault, rules, one_hot, block):
    """Against the algorithm in float64, as in `test_kernel_against_reference`."""
    package = package_with(FAULTS[fault], tmp_path)
    # The last two accept a part of a block with a probability below 1 and depend on it: one request in seventy does.
    numbers = [*range(22), 234, 236]
    requests = [make_request(number, vocabulary=12, drafts=3, rules=rules) for number in numbers]
    requests = [request.one_hot() if one_hot else request for request in requests]
    verify = partial(package.verify, backend="kernel")
    # A few at a time: most faults show in the first, and the interpreter is slow.
    assert any(is_wrong(verify, requests[first : first + 4], block=block) for first in range(0, len(requests), 4))
