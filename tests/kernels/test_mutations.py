"""Verifiers with faults that serving engines have had: each fails the measurement that the sound ones pass.

A fault is put into a copy of the package's own source, so that nothing else differs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.cases import CASES, LEVEL
from tests.kernels.generation import expected, first_two_tokens
from tests.kernels.goodness import p_value, smallest_error_found, total_variation
from tests.kernels.mutants import Fault, package_with

BY_NAME = {case.name: case for case in CASES}
REFERENCE = "spec_verify/pytorch.py"

ACCEPT_ALWAYS = Fault(
    name="accept always",
    file=REFERENCE,
    right="return uniforms * draft_prob < target_prob",
    wrong="return uniforms * draft_prob < target_prob + 2.0",
)

REFERENCE_FAULTS = [
    (ACCEPT_ALWAYS, "plain, greedy, standard"),
    (ACCEPT_ALWAYS, "plain, free, standard"),
    (
        Fault(
            name="draft probability forgotten",
            file=REFERENCE,
            right="return uniforms * draft_prob < target_prob",
            wrong="return uniforms < target_prob",
        ),
        "plain, free, standard",
    ),
    (
        Fault(
            name="residual not renormalised",
            file="sampling.py",
            right="cdf[:, -1:] * uniforms[:, None]",
            wrong="uniforms[:, None]",
        ),
        "plain, free, standard",
    ),
    (
        Fault(
            name="residual not clipped",
            file=REFERENCE,
            right="masked_fill_(~sampled[:, None], 0.0)).clamp_(min=0.0)",
            wrong="masked_fill_(~sampled[:, None], 0.0)).abs_()",
        ),
        "plain, free, standard",
    ),
    (
        Fault(
            name="residual keeps the drafted token",
            file=REFERENCE,
            right=".masked_fill_(drop, 0.0)",
            wrong=".masked_fill_(drop & False, 0.0)",
        ),
        "plain, greedy, standard",
    ),
    (
        Fault(
            name="residual keeps the draft's distribution",
            file=REFERENCE,
            right="(scaled_probs - q.masked_fill_",
            wrong="(scaled_probs - 0.0 * q.masked_fill_",
        ),
        "plain, free, standard",
    ),
    (
        Fault(
            name="shared noise of acceptance and residual",
            file=REFERENCE,
            right="int(Purpose.RESIDUAL), int(Purpose.TARGET))",
            wrong="int(Purpose.ACCEPT), int(Purpose.TARGET))",
        ),
        "plain, free, standard",
    ),
    (
        Fault(
            name="shared noise of draft and residual",
            file=REFERENCE,
            right="int(Purpose.RESIDUAL), int(Purpose.TARGET))",
            wrong="int(Purpose.DRAFT), int(Purpose.TARGET))",
        ),
        "plain, free, standard",
    ),
    (
        Fault(
            name="shared noise of draft and acceptance",
            file=REFERENCE,
            right="uniform(seed, at, Purpose.ACCEPT)",
            wrong="uniform(seed, at, Purpose.DRAFT)",
        ),
        "plain, free, standard",
    ),
    (
        Fault(
            name="penalties that ignore the drafts in the row",
            file="adjustments.py",
            right="counted = (step > earlier)",
            wrong="counted = (step < 0)",
        ),
        "penalties, greedy, standard",
    ),
    (
        Fault(
            name="residual of the target before its filters",
            file=REFERENCE,
            right="p = target.probs.index_select",
            wrong="p = target.scores.softmax(-1).index_select",
        ),
        "top-p, free, standard",
    ),
    (
        Fault(
            name="the block's residual without the block's probability",
            file=REFERENCE,
            right="probs * share.where(sampled, 1.0)[:, None]",
            wrong="probs * 1.0",
        ),
        "far off, free, block",
    ),
    (
        Fault(
            name="the block's chance without its residual mass",
            file="spec_verify/block.py",
            right="masses / (masses + 1.0 - head)",
            wrong="head",
        ),
        "plain, free, block",
    ),
    (
        Fault(
            name="bonus token of the row before",
            file=REFERENCE,
            right="rows.gather(1, at)[:, 0])  # [B, V]",
            wrong="rows.gather(1, (at - 1).clamp(min=0))[:, 0])  # [B, V]",
        ),
        "plain, greedy, standard",
    ),
    (
        Fault(
            name="the next step takes a discarded block's numbers again",
            file=REFERENCE,
            right="uniform(seed, at, step_purpose(Purpose.ACCEPT, steps[:-1]))",
            wrong="uniform(seed, at, Purpose.ACCEPT)",
        ),
        "plain, greedy, block",
    ),
    (
        Fault(
            name="one-hot drafts taken as sampled",
            file=REFERENCE,
            right="ignored = ignored | onehot[:, None]",
            wrong="ignored = ignored & True",
        ),
        "plain, mixed, standard",
    ),
    (
        Fault(
            name="top-p counted before top-k",
            file="filters.py",
            right="_count_in_top_p(probs.gather(1, ids), top_p)",
            wrong="_count_in_top_p(scores.softmax(-1).gather(1, ids), top_p)",
        ),
        "top-k and top-p, greedy, standard",
    ),
]


@pytest.mark.parametrize(("fault", "case"), REFERENCE_FAULTS, ids=lambda value: getattr(value, "name", value))
def test_a_fault_in_the_reference_is_found(tmp_path, fault, case):
    tokens = first_two_tokens(BY_NAME[case], api=package_with(fault, tmp_path), backend="reference")
    assert p_value(tokens, expected(BY_NAME[case])) < LEVEL


def test_a_copy_without_a_fault_does_what_the_original_does(tmp_path):
    case = replace(BY_NAME["everything, mixed, standard"], requests=2000)
    copied = first_two_tokens(case, api=package_with(None, tmp_path), backend="reference")
    assert np.array_equal(copied, first_two_tokens(case, backend="reference"))


@pytest.mark.parametrize("case", ["plain, free, standard", "penalties, greedy, standard"])
def test_an_error_of_the_stated_size_is_found(case, tmp_path):
    """A share of the requests is accepted without a look: so many that the tokens are wrong by the stated distance."""
    case = BY_NAME[case]
    joint = expected(case)
    right = first_two_tokens(case, backend="reference")
    wrong = first_two_tokens(case, api=package_with(ACCEPT_ALWAYS, tmp_path), backend="reference")
    share = smallest_error_found(case.requests, joint, LEVEL) / total_variation(wrong, joint)
    assert share < 1
    faulty = np.arange(case.requests) % 1000 < 1000 * share
    assert p_value(np.where(faulty[:, None], wrong, right), joint) < LEVEL
