"""The V2 model runner runs an EAGLE head no more than needed: its passes and its samples counted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engines import MOST, TOKENS, Heads, engine_of, prompt_of, scheduler_of
from vllm import LLM, SamplingParams
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator


@pytest.fixture(scope="module", params=["eagle-async", "eagle-sync"])
def llm(request: pytest.FixtureRequest, heads: Heads) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        yield engine_of(request.param, heads)


class Passes:
    """The steps of the engine, the passes of the head, its samples, and its drafts by the position of the first one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps = self.passes = self.samples = 0
        self.drafts: dict[int, tuple[int, ...]] = {}
        run, logits = TargetDependentARSpeculator._run_model, TargetDependentARSpeculator.compute_draft_logits
        propose = TargetDependentARSpeculator.propose

        def counted_run(speculator: Any, *args: Any, **options: Any) -> Any:
            self.passes += 1
            return run(speculator, *args, **options)

        def counted_logits(speculator: Any, *args: Any, **options: Any) -> Any:
            self.samples += 1
            return logits(speculator, *args, **options)

        def kept(speculator: Any, batch: Any, *args: Any, **options: Any) -> Any:
            self.steps += 1
            drafts: torch.Tensor = propose(speculator, batch, *args, **options)
            if (count := options["num_speculative_tokens"]) == MOST:
                at = int(batch.positions[speculator.last_token_indices[0]])
                self.drafts[at] = tuple(drafts[0, :count].tolist())
            return drafts

        patch.setattr(TargetDependentARSpeculator, "_run_model", counted_run)
        patch.setattr(TargetDependentARSpeculator, "compute_draft_logits", counted_logits)
        patch.setattr(TargetDependentARSpeculator, "propose", kept)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> Passes:
    assert llm.reset_prefix_cache()
    return Passes(monkeypatch)


def run(llm: LLM, prompt: list[int], length: int, changes: random.Random | None = None) -> list[int]:
    extra = {"slipstream_draft_length": length}
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, extra_args=extra)
    llm.llm_engine.add_request("a", {"prompt_token_ids": prompt}, params)
    tokens: list[int] = []
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            tokens = list(output.outputs[0].token_ids)
        if changes is not None and changes.random() < 0.3:
            scheduler_of(llm).slipstream_set_length("a", changes.choice([0, MOST]))
    return tokens


def test_a_step_without_drafts_runs_the_head_once_and_samples_nothing(llm: LLM, passes: Passes) -> None:
    assert len(run(llm, prompt_of(llm.get_tokenizer(), random.Random(1)), 0)) == TOKENS
    assert passes.passes == passes.steps >= TOKENS
    assert passes.samples == 0


def test_drafts_after_a_pause_are_those_without_it(llm: LLM, passes: Passes) -> None:
    """The head's cache is complete, so drafts depend on the tokens alone."""
    prompt, changes, shared = prompt_of(llm.get_tokenizer(), random.Random(2)), random.Random(3), 0
    answer, known = run(llm, prompt, MOST), dict(passes.drafts)
    assert passes.samples > passes.steps
    for _ in range(4):
        assert llm.reset_prefix_cache()
        passes.drafts = {}
        assert run(llm, prompt, changes.choice([0, MOST]), changes) == answer
        both = passes.drafts.keys() & known.keys()
        assert {at: passes.drafts[at] for at in both} == {at: known[at] for at in both}
        shared += len(both)
        known |= passes.drafts
    assert shared > 4
