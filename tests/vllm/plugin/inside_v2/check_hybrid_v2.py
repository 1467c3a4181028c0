"""Copies of the text beside a draft model's or a head's tokens: a whole engine in this process."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from engines import Heads
from vllm import LLM, SamplingParams

TARGET = os.environ["SLIPSTREAM_TARGET"]
MOST = 4
TOKENS = 24
ITEMS = ("11514 / Felix Branansen / 57307", "Mara Osterova / 4411 / 88231", "91039 / Ada Laminard / 10473 / 20931")
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 1.5, "top_k": 50, "seed": 4},
)


@pytest.fixture(
    scope="module",
    params=[("draft_model", True), ("draft_model", False), ("eagle", True)],
    ids=["draft model, async", "draft model, sync", "EAGLE, async"],
)
def llm(request: pytest.FixtureRequest, heads: Heads) -> Iterator[LLM]:
    method, asynchronous = request.param
    draft = {"draft_model": TARGET.replace("target", "draft"), "eagle": heads["eagle"]}[method]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        yield LLM(
            model=TARGET,
            dtype="float32",
            max_model_len=256,
            max_num_seqs=4,
            block_size=32,
            num_gpu_blocks_override=9,  # too few for four requests, so that some are preempted
            enforce_eager=True,
            disable_log_stats=False,
            async_scheduling=asynchronous,
            scheduler_cls="slipstream_vllm.Scheduler",
            additional_config={"slipstream_hybrid": True},
            speculative_config={"method": method, "model": draft, "num_speculative_tokens": MOST},
        )


@pytest.fixture(autouse=True)
def no_known_prefixes(llm: LLM) -> None:
    assert llm.reset_prefix_cache()


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Draft tokens by their source, and accepted ones by `accepted` and their source."""
    found: Counter[str] = Counter()

    def add_to(counts: Any, request_class: str, length: int, source: str, drafted: int, accepted: int) -> None:
        found.update({source: drafted, f"accepted {source}": accepted})

    monkeypatch.setattr("slipstream_vllm.counters.StepCounts.add", add_to)
    return found


def prompt_of(llm: LLM, items: str) -> list[int]:
    messages: list[Any] = [{"role": "user", "content": f"Repeat: {items}"}]
    tokens: list[int] = llm.get_tokenizer().apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return tokens


def add(llm: LLM, name: str, items: str, length: int, kind: int = 0, tokens: int = TOKENS) -> None:
    extra = {"slipstream_draft_length": length}
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=extra, **KINDS[kind])
    llm.llm_engine.add_request(name, {"prompt_token_ids": prompt_of(llm, items)}, params)


def step(llm: LLM) -> dict[str, list[int]]:
    return {output.request_id: list(output.outputs[0].token_ids) for output in llm.llm_engine.step()}


def finish(llm: LLM) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    while llm.llm_engine.has_unfinished_requests():
        answers |= step(llm)
    return answers


def run(llm: LLM, items: str, length: int, kind: int = 0) -> list[int]:
    add(llm, "a", items, length, kind)
    return finish(llm)["a"]


def test_answers_do_not_depend_on_what_proposes(llm: LLM, verified: Counter[str], preempted: list[str]) -> None:
    """Requests with random lengths, kinds, changes, ends, shared beginnings and preemptions."""
    draw = random.Random(5)
    kinds = [(items, kind) for items in ITEMS for kind in range(len(KINDS))]
    plain = {(items, kind): run(llm, items, 0, kind) for items, kind in kinds}
    preempted.clear()
    scheduler: Any = llm.llm_engine.engine_core.engine_core.scheduler
    chosen: dict[str, tuple[str, int]] = {}
    answers: dict[str, list[int]] = {}
    for number in range(24):
        chosen[f"r{number}"] = draw.choice(kinds)
        add(llm, f"r{number}", chosen[f"r{number}"][0], draw.choice([0, 2, MOST, MOST]), chosen[f"r{number}"][1])
        for _ in range(draw.randrange(6)):
            answers |= step(llm)
            scheduler.slipstream_set_length(f"r{draw.randint(number - 3, number)}", draw.choice([0, 2, MOST]))
        if number % 8 == 7:
            llm.llm_engine.abort_request([f"r{number}"])
            del chosen[f"r{number}"]
    answers |= finish(llm)
    assert preempted
    assert {name: answers[name] for name in chosen} == {name: plain[which] for name, which in chosen.items()}
    assert verified["accepted copy"] > 0
    assert verified["drafter"] > 0


def test_drafter_makes_fewer_passes_while_a_long_passage_is_copied(
    llm: LLM, verified: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = type(llm.llm_engine.model_executor.driver_worker.worker.model_runner.speculator)
    forward, passes = drafter._run_model, []

    def counted(*args: Any, **options: Any) -> Any:
        passes.append(1)
        return forward(*args, **options)

    monkeypatch.setattr(drafter, "_run_model", counted)
    add(llm, "a", " / ".join(ITEMS), MOST, tokens=2 * TOKENS)
    finish(llm)
    assert verified["accepted copy"] > TOKENS
    assert len(passes) < 0.8 * (verified["copy"] + verified["drafter"])  # one pass makes one token
