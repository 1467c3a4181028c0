"""The cases in which emitted tokens are measured, and the level at which each is judged."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.kernels.generation import BIAS, PENALTIES, Case
from tests.kernels.goodness import FALSE_ALARMS
from tests.kernels.oracle import Rules

RULES = {
    "plain": Rules(),
    "temperature": Rules(temperature=0.6),
    "top-k": Rules(temperature=1.4, top_k=3),
    "top-p": Rules(top_p=0.8),
    "min-p": Rules(min_p=0.25),
    "top-k and top-p": Rules(top_k=3, top_p=0.75),
    "all filters": Rules(temperature=1.3, top_k=5, top_p=0.9, min_p=0.1),
    "bias": Rules(bias=BIAS),
    "penalties": Rules(**PENALTIES),
    "grammar": Rules(),
    "everything": Rules(temperature=1.2, top_k=5, top_p=0.95, min_p=0.05, bias=BIAS, **PENALTIES),
}


def _case(rules: str, draft: str, *, block: bool, dtype: torch.dtype = torch.float32) -> Case:
    name = f"{rules}, {draft}, {'block' if block else 'standard'}"
    name += f", {str(dtype).removeprefix('torch.')}" if dtype != torch.float32 else ""
    grammar = rules in ("grammar", "everything")
    return Case(name=name, draft=draft, rules=RULES[rules], grammar=grammar, block=block, dtype=dtype)


_FAR = Case(
    name="far off, free, block", draft="free", block=True, ragged=False, agreement=0.0, noise=2.0, requests=60_000
)
"""Drafts that are long and mostly wrong: what the block rule does after it has accepted a part shows here."""


def _all() -> list[Case]:
    rules = [(rule, draft) for rule in RULES for draft in ("greedy", "free", "mixed")]
    rules += [("plain", draft) for draft in ("lookup", "sampled", "narrow", "wide")]
    cases = [_case(rule, draft, block=block) for rule, draft in rules for block in (False, True)]
    halves = [(dtype, draft) for dtype in (torch.bfloat16, torch.float16) for draft in ("greedy", "free", "mixed")]
    cases += [_case("plain", draft, block=False, dtype=dtype) for dtype, draft in halves]
    return [*cases, _FAR]


CASES = _all()

INTERPRETED = [
    replace(_case(rules, draft, block=block, dtype=dtype), drafted=1 if not block else 2)
    for rules, draft, block, dtype in (
        ("plain", "greedy", False, torch.bfloat16),
        ("plain", "free", False, torch.float32),
        ("top-k", "greedy", False, torch.float32),
        ("all filters", "mixed", False, torch.float16),
        ("penalties", "greedy", False, torch.float32),
        ("everything", "mixed", False, torch.float32),
        ("plain", "greedy", True, torch.float32),
        ("plain", "free", True, torch.float32),
    )
]
"""What the interpreter has time for."""

LEVEL = FALSE_ALARMS / (len(CASES) + max(len(CASES), len(INTERPRETED)))
"""Each measurement's share of the budget (Bonferroni): the reference's of all cases, and the kernel's."""
