"""What speculation emits has the target's distribution: chi-squared goodness of fit of the first two tokens together.

Each case generates from many seeds at once, with draft lengths 0 to 2 side by side. Seeds are fixed, so a run does not
differ from the next; the chance that sound code was ever to fail one of these tests is `FALSE_ALARMS`, whatever their
number. What the same measurement finds is in `test_mutations`.
"""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cases import CASES, INTERPRETED, LEVEL, RULES
from tests.kernels.generation import expected, first_two_tokens
from tests.kernels.goodness import p_value, smallest_error_found

CUDA = torch.cuda.is_available()
KERNEL_CASES = [case.on("cuda", 100_000) for case in CASES] if CUDA else [case.on("cpu", 40) for case in INTERPRETED]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_reference_emits_the_targets_distribution(case):
    assert p_value(first_two_tokens(case, backend="reference"), expected(case)) > LEVEL


@pytest.mark.parametrize("case", KERNEL_CASES, ids=lambda case: case.name)
def test_the_kernel_emits_the_targets_distribution(case):
    tokens = first_two_tokens(case, backend="kernel")
    assert p_value(tokens, expected(case)) > LEVEL
    # The same numbers decide the same way: so few requests are as good as the reference's many.
    assert (tokens == first_two_tokens(case, backend="reference")).all(1).mean() > 0.99


def test_errors_of_a_few_per_cent_would_be_found():
    sizes = [smallest_error_found(case.requests, expected(case), LEVEL) for case in CASES]
    assert max(sizes) < 0.05


def test_the_cases_do_differ():
    """A parameter that is not passed on would leave two cases with one distribution."""
    joints = {name: expected(case) for case in CASES if (name := case.name.split(",")[0]) in RULES}
    distances = [abs(a - b).sum() / 2 for n, a in joints.items() for m, b in joints.items() if n < m]
    assert min(distances) > 0.03
