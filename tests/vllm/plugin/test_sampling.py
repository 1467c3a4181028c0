"""Acceptance by equality: sampled answers do not depend on the draft length."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, islice
from typing import Any

import pytest
from scipy.stats import chi2_contingency

from tests.vllm.plugin.client import Answer, Server, summaries, together

pytestmark = pytest.mark.timeout(900)
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 1.5},
    {"temperature": 2.0},
    {"temperature": 1.8},
    {"temperature": 2.0, "top_p": 0.8},
    {"temperature": 2.0, "top_k": 20},
    {"temperature": 1.8, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"temperature": 2.0, "repetition_penalty": 1.2},
    {"temperature": 2.0, "min_tokens": 30},
    {"temperature": 2.0, "logprobs": True, "top_logprobs": 3},
    {"temperature": 0.0},
)
SEEDED = 50
HOT = {"temperature": 2.0, "top_k": 8}  # tens of outcomes; a prompt of the workload has one
PAIRS = 400  # first two tokens of as many answers, at either length


async def test_a_seeded_answer_is_the_same_at_every_length(speculative: Server) -> None:
    bodies = summaries(10)
    kinds = islice(cycle(SAMPLING), SEEDED)
    prompts = [bodies[(n + n // len(SAMPLING)) % len(bodies)] for n in range(SEEDED)]  # another one in each cycle
    requests = [
        {**prompt, **kind, "seed": 1000 + n, "max_tokens": 50}
        for n, (prompt, kind) in enumerate(zip(prompts, kinds, strict=True))
    ]
    plain: list[Answer] = await together(*(speculative.chat(one, 0) for one in requests))
    drafted: list[Answer] = await together(*(speculative.chat(one, 4) for one in requests))
    mixed: list[Answer] = await together(*(speculative.chat(one, n % 5) for n, one in enumerate(requests)))
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    assert [answer.token_ids for answer in mixed] == [answer.token_ids for answer in plain]
    assert sum(answer.accepted for answer in drafted) > SEEDED
    assert len({answer.token_ids for answer in plain}) > SEEDED / 2


async def test_first_two_tokens_have_the_same_distribution(speculative: Server) -> None:
    await compare_first_tokens(speculative)


async def compare_first_tokens(server: Server) -> None:
    """Two tokens: the second one is drawn after the first was accepted or replaced."""
    body = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 3, **HOT}
    counts = []
    for length in (0, 4):
        answers: list[Answer] = await together(*(server.chat(body, length) for _ in range(PAIRS)))
        counts.append(Counter(answer.token_ids[:2] for answer in answers))
    assert p_value(*counts) > 1e-4


def p_value(first: Counter[tuple[int, ...]], second: Counter[tuple[int, ...]]) -> float:
    """Chi-squared test that both are draws from one distribution. Outcomes seen fewer than 10 times are pooled."""
    table: list[list[float]] = []
    rest = [0, 0]
    for outcome in first.keys() | second.keys():
        row = [first[outcome], second[outcome]]
        if sum(row) >= 10:
            table.append([float(count) for count in row])
        else:
            rest = [a + b for a, b in zip(rest, row, strict=True)]
    if sum(rest) >= 10:
        table.append([float(count) for count in rest])
    assert len(table) > 1, "one outcome only: nothing is compared"
    return float(chi2_contingency(table).pvalue)
