"""Verifiers with faults that serving engines have had: each changes a text, and the comparison with plain decoding
shows it. What plain decoding itself draws is measured in `test_losslessness`.

A fault is put into a copy of the package's own source, so that nothing else differs.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.cases import CASES, LEVEL
from tests.kernels.generation import decode, expected, first_two_tokens
from tests.kernels.goodness import p_value, smallest_error_found, total_variation
from tests.kernels.mutants import Fault, package_with

# They test the tests: what they find does not change with the product.
pytestmark = pytest.mark.slow

BY_NAME = {case.name: case for case in CASES}
REFERENCE = "spec_verify/pytorch.py"
WHO, TOKENS = range(60), 6

ACCEPT_ALWAYS = Fault(
    name="every draft is accepted",
    file=REFERENCE,
    right="(tokens[:, :-1] == draft_token_ids)",
    wrong="((tokens[:, :-1] == draft_token_ids) | True)",
)

FAULTS = [
    (
        Fault(
            name="the first draft token is kept whatever the target draws",
            file=REFERENCE,
            right="tokens, healthy = choices.token_ids, choices.healthy  # [B, K + 1]\n",
            wrong="tokens, healthy = choices.token_ids, choices.healthy; tokens[:, 0] = draft_token_ids[:, 0]\n",
        ),
        "plain, greedy",
    ),
    (ACCEPT_ALWAYS, "plain, lookup"),
    (
        Fault(
            name="row of the token before",
            file=REFERENCE,
            right="return _Choices(tokens.take(rows),",
            wrong="return _Choices(tokens.take((rows - 1).clamp(min=0)),",
        ),
        "plain, greedy",
    ),
    (
        Fault(
            name="noise of the step's first position for all its rows",
            file=REFERENCE,
            right="at.add_((positions - rows[:, 0])[owner])",
            wrong="positions[owner]",
        ),
        "plain, greedy",
    ),
    (
        Fault(
            name="noise of the next position",
            file=REFERENCE,
            right="at.add_((positions - rows[:, 0])[owner])",
            wrong="at.add_((positions - rows[:, 0])[owner] + 1)",
        ),
        "plain, shared",
    ),
    (
        Fault(
            name="noise by slot",
            file="counter_random.py",
            right="return mix(mix(seed) + position * _factor(position, GAMMA))",
            wrong="position = position + np.arange(len(seed), dtype=np.uint64)\n"
            "    return mix(mix(seed) + position * _factor(position, GAMMA))",
        ),
        "plain, greedy",
    ),
    (
        Fault(
            name="noise by length of the batch",
            file="counter_random.py",
            right="if seed.size(0) <= _FEW:",
            wrong="position = position + seed.size(0) * (seed.size(0) > 60)\n    if False:",
        ),
        "plain, greedy",
    ),
    (
        Fault(
            name="parameters of the request before",
            file=REFERENCE,
            right="return sampling.rows(owner), at",
            wrong="return sampling.rows((owner - 1).clamp(min=0)), at",
        ),
        "plain, greedy",
    ),
    (
        Fault(
            name="filters after the noise",
            file=REFERENCE,
            right="tokens = choose(filtered(scores.exp(), scores, sampling), scores, sampling, positions)",
            wrong="tokens = choose(scores.exp(), scores, sampling, positions)\n"
            "    kept = filtered(scores.exp(), scores, sampling).gather(1, tokens[:, None])[:, 0] > 0\n"
            "    tokens = tokens.where(kept, scores.argmax(-1))",
        ),
        "top-p, greedy",
    ),
    (
        Fault(
            name="top-p counted before top-k",
            file="filters.py",
            right="target = top_p * weights.sum(-1, keepdim=True)",
            wrong="target = top_p * scores.exp().sum(-1, keepdim=True)",
        ),
        "top-k and top-p, greedy",
    ),
    (
        Fault(
            name="one token too many",
            file=REFERENCE,
            right="lengths = accepted + 1\n",
            wrong="lengths = (accepted + 2).clamp(max=tokens.size(1))\n",
        ),
        "plain, lookup",
    ),
    (
        Fault(
            name="drafts beyond a request's draft length",
            file=REFERENCE,
            right=" & (steps[:-1] < draft_lengths[:, None])",
            wrong="",
        ),
        "plain, shared",
    ),
    (
        Fault(
            name="penalties blind to drafts",
            file="adjustments.py",
            right="counted = (step > earlier)",
            wrong="counted = (step < 0)",
        ),
        "penalties, greedy",
    ),
    (
        Fault(
            name="penalties that count the drafted token of the row itself",
            file="adjustments.py",
            right="counted = (step > earlier)",
            wrong="counted = (step >= earlier)",
        ),
        "penalties, greedy",
    ),
    (
        Fault(
            name="grammar of the row before",
            file="adjustments.py",
            right="adjustments.bitmask[:, tokens // 32]",
            wrong="adjustments.bitmask.roll(1, 0)[:, tokens // 32]",
        ),
        "grammar, greedy",
    ),
    (
        Fault(
            name="bias of the first request for all",
            file="adjustments.py",
            right="x += _dense(*bias, x.size(1))[owner]",
            wrong="x += _dense(*bias, x.size(1))[owner] * (owner == 0)[:, None]",
        ),
        "bias, greedy",
    ),
]


@pytest.fixture(scope="module")
def plain():
    """The texts of plain decoding, by case."""
    return {name: decode(case, WHO, TOKENS, drafted=0, backend="reference") for name, case in BY_NAME.items()}


@pytest.mark.parametrize(("fault", "case"), FAULTS, ids=lambda value: getattr(value, "name", value))
def test_a_fault_changes_a_text(tmp_path, plain, fault, case):
    package = package_with(fault, tmp_path)
    assert decode(BY_NAME[case], WHO, TOKENS, api=package, backend="reference") != plain[case]


@pytest.mark.parametrize("case", ["plain, greedy", "everything, shared"])
def test_a_copy_without_a_fault_changes_none(tmp_path, plain, case):
    assert decode(BY_NAME[case], WHO, TOKENS, api=package_with(None, tmp_path), backend="reference") == plain[case]


@pytest.mark.parametrize("case", ["plain, greedy", "penalties, greedy"])
def test_the_goodness_of_fit_finds_an_error_of_the_stated_size(case, tmp_path):
    """A share of the requests is accepted without a look: so many that the tokens are wrong by the stated distance."""
    case = BY_NAME[case]
    joint = expected(case)
    right = first_two_tokens(case, backend="reference")
    wrong = first_two_tokens(case, api=package_with(ACCEPT_ALWAYS, tmp_path), backend="reference")
    share = smallest_error_found(case.requests, joint, LEVEL) / total_variation(wrong, joint)
    assert share < 1
    faulty = np.arange(case.requests) % 1000 < 1000 * share
    assert p_value(np.where(faulty[:, None], wrong, right), joint) < LEVEL
