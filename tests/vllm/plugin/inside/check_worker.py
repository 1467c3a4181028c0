"""A whole engine in this process, so that its model runner can be looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from scripted import MOST
from slipstream_vllm.draft_cache import DraftCache
from vllm import LLM, SamplingParams

TARGET = os.environ["SLIPSTREAM_TARGET"]
TOKENS = 24
THINK, ANSWER = "reason:", "answer:"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        draft = TARGET.replace("target", "draft")
        yield LLM(
            model=TARGET,
            dtype="float32",
            max_model_len=512,
            max_num_seqs=4,
            enforce_eager=True,
            scheduler_cls="slipstream_vllm.Scheduler",
            speculative_config={"method": "draft_model", "model": draft, "num_speculative_tokens": MOST},
            reasoning_config={"reasoning_start_str": THINK, "reasoning_end_str": ANSWER},
        )


def answers(llm: LLM, length: int, *budgets: int | None) -> list[list[int]]:
    """One request per thinking budget, in one batch. The prompt ends where thinking starts."""
    prompt = {"prompt_token_ids": [*range(40, 80), *llm.get_tokenizer().encode(THINK, add_special_tokens=False)]}
    params = [
        SamplingParams(
            temperature=0,
            max_tokens=TOKENS,
            ignore_eos=True,
            thinking_token_budget=budget,
            extra_args={"slipstream_draft_length": length},
        )
        for budget in budgets
    ]
    outputs = llm.generate([prompt] * len(budgets), params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def draft_cache(llm: LLM) -> DraftCache:
    runner: Any = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    cache: DraftCache = runner._slipstream_draft_cache
    return cache


@pytest.mark.parametrize("length", [0, MOST])
def test_a_request_that_ended_is_forgotten_though_none_follows(llm: LLM, length: int) -> None:
    assert len(answers(llm, length, None)[0]) == TOKENS
    assert len(draft_cache(llm)._until) == (1 if length else 0)
    llm.llm_engine.engine_core.engine_core.step_fn()  # without tokens: what vLLM's engine process does by itself
    assert draft_cache(llm)._until == {}


@pytest.mark.parametrize("length", [0, 1, MOST])
def test_a_thinking_budget_ends_the_thinking_of_its_own_request(llm: LLM, length: int) -> None:
    end = llm.get_tokenizer().encode(ANSWER, add_special_tokens=False)
    [alone] = answers(llm, length, None)
    free, short, long = answers(llm, length, None, 5, 12)
    assert free == alone
    for thinking, budget in ((short, 5), (long, 12)):
        thought = (
            budget + 1
        )  # where the prompt starts the thinking, vLLM allows one token more, without speculation too
        assert thinking[: thought + len(end)] == [*alone[:thought], *end]
