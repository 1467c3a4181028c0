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


DRAFTS = ("greedy", "lookup", "shared")


def _case(rules: str, draft: str, *, dtype: torch.dtype = torch.float32) -> Case:
    name = f"{rules}, {draft}"
    name += f", {str(dtype).removeprefix('torch.')}" if dtype != torch.float32 else ""
    grammar = rules in ("grammar", "everything")
    return Case(name=name, draft=draft, rules=RULES[rules], grammar=grammar, dtype=dtype)


def _all() -> list[Case]:
    cases = [_case(rule, draft) for rule in RULES for draft in DRAFTS]
    return [*cases, *(_case("plain", draft, dtype=torch.bfloat16) for draft in DRAFTS)]


CASES = _all()

INTERPRETED = [
    replace(_case(rules, draft, dtype=dtype), drafted=1)
    for rules, draft, dtype in (
        ("plain", "greedy", torch.bfloat16),
        ("plain", "shared", torch.float32),
        ("all filters", "shared", torch.float16),
        ("everything", "greedy", torch.float32),
    )
]
"""What the interpreter has time for."""

LEVEL = FALSE_ALARMS / (len(CASES) + max(len(CASES), len(INTERPRETED)))
"""Each measurement's share of the budget (Bonferroni): the reference's of all cases, and the kernel's."""
