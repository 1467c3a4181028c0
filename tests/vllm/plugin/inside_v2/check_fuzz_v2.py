"""Random requests on the V2 model runner: every answer is that of length 0, whatever happens meanwhile.

Requests have random prompts with common beginnings, ways of sampling, seeds, limits and draft lengths. While they run,
their lengths and the server's limit change, some are aborted, and some are preempted because blocks are few.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from engines import (
    BLOCKS,
    METHODS,
    MOST,
    REQUESTS,
    TOKENS,
    Heads,
    Question,
    engine_of,
    questions,
    scheduler_of,
    tokens_of,
)
from prometheus_client import REGISTRY
from vllm import LLM, RequestOutput, SamplingParams
from vllm.sampling_params import RequestOutputKind

IN_FLIGHT = 7
COUNTS = ("drafts", "draft_tokens", "accepted_tokens")


@pytest.fixture(scope="module", params=METHODS)
def llm(request: pytest.FixtureRequest, heads: Heads) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        yield engine_of(request.param, heads)


class Fuzz:
    """Requests by name that are in flight, and what they asked for."""

    def __init__(self, llm: LLM, draw: random.Random) -> None:
        self._llm = llm
        self._draw = draw
        self.running: dict[str, Question] = {}
        self.doomed: set[str] = set()  # to be aborted
        self.wrong: list[tuple[str, dict[str, Any], Any, Any]] = []
        self.answered = 0
        self.counts: Counter[str] = Counter()

    def add(self, name: str, question: Question) -> None:
        draw = self._draw
        if draw.random() < 0.15:
            self.doomed.add(name)
        extra = {
            "slipstream_draft_length": draw.randint(0, MOST),
            "slipstream_adaptive": int(draw.random() < 0.3),
            "slipstream_class": "doomed" if name in self.doomed else "whole",
        }
        limit = draw.randint(max(1, question.kind.get("min_tokens", 0)), TOKENS)
        expected = [tokens[:limit] for tokens in question.answers]
        self.running[name] = question._replace(answers=expected)
        params = SamplingParams(
            max_tokens=limit, extra_args=extra, output_kind=RequestOutputKind.FINAL_ONLY, **question.kind
        )
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": question.prompt}, params)

    def step(self) -> None:
        for output in self._llm.llm_engine.step():
            if output.finished and (question := self.running.pop(output.request_id, None)) is not None:
                self._compare(output, question)

    def _compare(self, output: RequestOutput, question: Question) -> None:
        self.answered += 1
        if (found := tokens_of(output)) != question.answers:
            self.wrong.append((output.request_id, question.kind, found, question.answers))
        if output.request_id in self.doomed:
            return
        for choice in output.outputs:
            counts = choice.spec_decode_metrics.to_dict() if choice.spec_decode_metrics is not None else {}
            self.counts["drafts"] += counts.get("num_spec_steps", 0)
            self.counts["draft_tokens"] += counts.get("num_draft_tokens", 0)
            self.counts["accepted_tokens"] += counts.get("num_accepted_draft_tokens", 0)

    def disturb(self) -> None:
        """Change what clients and operators may change."""
        draw, scheduler = self._draw, scheduler_of(self._llm)
        if draw.random() < 0.3 and self.running:
            scheduler.slipstream_set_length(draw.choice([*self.running]), draw.randint(0, MOST))
        if draw.random() < 0.1:
            scheduler.slipstream_set_limit(draw.choice([None, None, None, None, 0, 1, 3]))
        if draw.random() < 0.01:
            scheduler.slipstream_stop_drafting()
        if draw.random() < 0.1 and (left := sorted(self.doomed & self.running.keys())):
            name = draw.choice(left)
            self._llm.llm_engine.abort_request([name])
            del self.running[name]


def counters() -> dict[str, Counter[str]]:
    """vLLM's own counters, the plugin's, and those of the plugin for the class of requests that are not aborted."""
    found: dict[str, Counter[str]] = {"vllm": Counter(), "plugin": Counter(), "whole": Counter()}
    for sample in (sample for family in REGISTRY.collect() for sample in family.samples):
        for name in COUNTS:
            if sample.name == f"vllm:spec_decode_num_{name}_total":
                found["vllm"][name] += int(sample.value)
            if sample.name == f"slipstream_vllm_{name}_total":
                found["plugin"][name] += int(sample.value)
                if sample.labels["request_class"] == "whole":
                    found["whole"][name] += int(sample.value)
    return found


def test_answers_are_those_of_length_0(llm: LLM, preempted: list[str]) -> None:
    draw = random.Random(REQUESTS)
    asked = questions(llm, draw, max(10, REQUESTS // 8))
    before = counters()
    fuzz = Fuzz(llm, draw)
    for number in range(REQUESTS):
        while len(fuzz.running) >= draw.randint(IN_FLIGHT // 2, IN_FLIGHT):
            fuzz.step()
            fuzz.disturb()
        fuzz.add(f"r{number}", draw.choice(asked))
    while llm.llm_engine.has_unfinished_requests():
        fuzz.step()
        fuzz.disturb()
    after = counters()
    gained = {whose: after[whose] - before[whose] for whose in after}
    print(f"{fuzz.answered} answers, {len(preempted)} preemptions, {len(fuzz.wrong)} wrong, {gained}")
    assert fuzz.wrong == []
    assert gained["plugin"] == gained["vllm"]
    assert gained["whole"] == +fuzz.counts
    assert 0 < gained["vllm"]["accepted_tokens"] < gained["vllm"]["draft_tokens"]
    assert preempted or REQUESTS < 100
    check_nothing_is_left(llm)


def check_nothing_is_left(llm: LLM) -> None:
    scheduler = scheduler_of(llm)
    assert not scheduler.requests
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == BLOCKS - 1  # vLLM keeps one block for padding
    assert all(block.ref_cnt == 0 for block in pool.blocks if not block.is_null)
