"""The first two tokens of sampled answers have one distribution, whatever drafts: whole engines in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engines import MOST, REQUESTS, Heads, engine_of
from vllm import LLM, SamplingParams

ANSWERS = max(100, REQUESTS)  # at either length; 1,000 of all six take 40 minutes of a core
AT_ONCE = 100
LEAST_P = 1e-3 / 6
LEAST_SEEN = 10
# Tens of outcomes. The first token comes from the prompt's pass, the second one is accepted or replaces a draft.
KINDS: tuple[dict[str, Any], ...] = ({"temperature": 2.0, "top_k": 8}, {"temperature": 1.3, "top_p": 0.8})


@pytest.fixture(scope="module", params=["draft_model-async", "ngram_gpu-async", "eagle-async"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    heads: Heads = request.getfixturevalue("heads") if "eagle" in request.param else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        yield engine_of(
            request.param, heads, max_num_seqs=AT_ONCE, max_num_batched_tokens=4096, num_gpu_blocks_override=1000
        )


def first_two_tokens(llm: LLM, kind: dict[str, Any], length: int) -> Counter[tuple[int, ...]]:
    """Of `ANSWERS` answers without a seed."""
    messages: list[Any] = [{"role": "user", "content": "Name a colour. Name a colour."}]
    prompt = llm.get_tokenizer().apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    params = SamplingParams(max_tokens=3, extra_args={"slipstream_draft_length": length}, **kind)
    outputs = llm.generate([{"prompt_token_ids": prompt}] * ANSWERS, params, use_tqdm=False)
    return Counter(tuple(output.outputs[0].token_ids[:2]) for output in outputs)


@pytest.mark.parametrize("kind", KINDS, ids=["top-k", "top-p"])
def test_first_two_tokens_have_the_same_distribution(
    llm: LLM, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: Counter[str] = Counter()

    def add(counts: Any, label: str | None, length: int, source: str, drafted: int, accepted: int) -> None:
        verified.update({"drafted": drafted, "accepted": accepted, "rejected": drafted - accepted})

    monkeypatch.setattr("slipstream_vllm.counters.StepCounts.add", add)
    plain = first_two_tokens(llm, kind, 0)
    assert verified["drafted"] == 0
    drafted = first_two_tokens(llm, kind, MOST)
    p = p_value(plain, drafted)
    print(f"\n{ANSWERS} answers each, {len(plain)} and {len(drafted)} outcomes, {dict(verified)}: p = {p:.4f}")
    assert verified["rejected"] > ANSWERS / 10
    assert p > LEAST_P


def p_value(first: Counter[tuple[int, ...]], second: Counter[tuple[int, ...]]) -> float:
    """Chi-squared test that two samples of one size are draws from one distribution. Outcomes that were seen rarely are
    pooled."""
    both = first + second
    frequent = [outcome for outcome, seen in both.items() if seen >= LEAST_SEEN]
    table = [(first[outcome], second[outcome]) for outcome in frequent]
    rare = (ANSWERS - sum(a for a, _ in table), ANSWERS - sum(b for _, b in table))
    table += [rare] if sum(rare) >= LEAST_SEEN else []
    assert len(table) > 2, "too few outcomes: nothing is compared"
    statistic = sum((a - b) ** 2 / (a + b) for a, b in table)
    freedom = torch.tensor((len(table) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))
