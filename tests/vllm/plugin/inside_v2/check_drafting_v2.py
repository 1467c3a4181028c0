"""The V2 model runner runs the draft model no more than needed: a whole engine in this process, its passes counted."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from slipstream_vllm.draft_passes_v2 import Records
from vllm import LLM, SamplingParams
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

TARGET = os.environ["SLIPSTREAM_TARGET"]
MOST = 4
TOKENS = 24
BLOCK = 32
BLOCKS = 10  # too few for four requests, so that some are preempted
CALL = (
    "Summarise this call for the CRM.\n\nAgent: Hello, this is Clara, how can I help you?\nCustomer: Hello, my name is "
    "{}. I was charged twice for my coffee machine.\nAgent: I am sorry to hear that. May I have your account number?\n"
    "Customer: It is {}.\nAgent: I am reversing the second payment now.\nCustomer: Thank you.\nSummary:"
)


@pytest.fixture(scope="module", params=[True, False], ids=["async", "sync"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        yield LLM(
            model=TARGET,
            dtype="float32",
            max_model_len=256,
            max_num_seqs=4,
            block_size=BLOCK,
            num_gpu_blocks_override=BLOCKS,
            enforce_eager=True,
            async_scheduling=request.param,
            scheduler_cls="slipstream_vllm.Scheduler",
            speculative_config={
                "method": "draft_model",
                "model": TARGET.replace("target", "draft"),
                "num_speculative_tokens": MOST,
            },
        )


@pytest.fixture(autouse=True)
def no_known_prefixes(llm: LLM) -> None:
    assert llm.reset_prefix_cache()


class Passes:
    """The number of tokens of each pass of the draft model, and what it proposed to requests that draft, by the request
    and the position of the first draft token."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.tokens: list[int] = []
        self.proposed: dict[tuple[str, int], tuple[int, ...]] = {}
        run, propose = StandaloneARSpeculator._run_model, StandaloneARSpeculator.propose

        def counted(speculator: Any, input_ids: torch.Tensor, *args: Any) -> Any:
            self.tokens.append(len(input_ids))
            return run(speculator, input_ids, *args)

        def kept(speculator: Any, batch: Any, *args: Any, **options: Any) -> Any:
            drafts = propose(speculator, batch, *args, **options)
            if options["num_speculative_tokens"]:
                last = speculator.expanded_positions[speculator.last_token_indices[: batch.num_reqs]].tolist()
                for req_id, position, row in zip(batch.req_ids, last, drafts.tolist(), strict=True):
                    if cap := speculator.slipstream_records._caps[req_id]:  # others' rows are computed and not used
                        self.proposed[req_id.rpartition("-")[0], position + 1] = tuple(row[:cap])
            return drafts

        patch.setattr(StandaloneARSpeculator, "_run_model", counted)
        patch.setattr(StandaloneARSpeculator, "propose", kept)

    def clear(self) -> None:
        self.tokens, self.proposed = [], {}


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


def prompt_of(llm: LLM, name: str = "Mara Osterova", account: int = 4820917) -> list[int]:
    return list(llm.get_tokenizer().encode(CALL.format(name, account)))


def add(llm: LLM, name: str, prompt: list[int], length: int) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=TOKENS, ignore_eos=True, extra_args={"slipstream_draft_length": length}
    )
    llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)


def step(llm: LLM) -> dict[str, list[int]]:
    return {output.request_id: list(output.outputs[0].token_ids) for output in llm.llm_engine.step()}


def scheduler_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def finish(llm: LLM) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    while llm.llm_engine.has_unfinished_requests():
        answers |= step(llm)
    return answers


def run(llm: LLM, prompt: list[int], length: int) -> list[int]:
    add(llm, "a", prompt, length)
    return finish(llm)["a"]


def test_plain_requests_run_no_pass(llm: LLM, passes: Passes) -> None:
    assert len(run(llm, prompt_of(llm), 0)) == TOKENS
    assert passes.tokens == []


def test_number_of_passes_is_the_longest_length(llm: LLM, passes: Passes) -> None:
    prompt = prompt_of(llm)
    add(llm, "a", prompt, 2)
    add(llm, "b", prompt[5:], 0)
    finish(llm)
    assert {len(proposed) for proposed in passes.proposed.values()} == {2}
    assert len(passes.tokens) == 2 * len(passes.proposed)


def test_cache_of_a_plain_request_is_completed_for_the_next_one(llm: LLM, passes: Passes) -> None:
    prompt = prompt_of(llm)
    answer, proposed = run(llm, prompt, MOST), dict(passes.proposed)
    assert llm.reset_prefix_cache()
    assert run(llm, prompt, 0) == answer
    passes.clear()
    assert run(llm, prompt, MOST) == answer
    known = len(prompt) // BLOCK * BLOCK  # the target has them from the plain request, the draft model does not
    assert passes.tokens[:2] == [known, len(prompt) - known + 1]
    assert passes.proposed == proposed
    passes.clear()
    assert run(llm, prompt, MOST) == answer
    assert passes.tokens[0] == len(prompt) - known + 1


def test_request_that_begins_to_draft_has_the_drafts_that_it_would_have_had(llm: LLM, passes: Passes) -> None:
    """Asynchronously, the host does not know yet how many drafts were accepted before the pause."""
    prompt, draw, shared = prompt_of(llm), random.Random(3), 0
    answer, proposed = run(llm, prompt, MOST), dict(passes.proposed)
    for _ in range(4):
        assert llm.reset_prefix_cache()
        passes.clear()
        add(llm, "a", prompt, draw.choice([0, MOST]))
        tokens: list[int] = []
        while llm.llm_engine.has_unfinished_requests():
            tokens = step(llm).get("a", tokens)
            if draw.random() < 0.4:
                scheduler_of(llm).slipstream_set_length("a", draw.choice([0, MOST]))
        assert tokens == answer
        both = passes.proposed.keys() & proposed.keys()
        assert {at: passes.proposed[at] for at in both} == {at: proposed[at] for at in both}
        shared += len(both)
        proposed |= passes.proposed
    assert shared > 4


def test_drafts_depend_on_the_tokens_alone(llm: LLM, passes: Passes, preempted: list[str]) -> None:
    """Requests with random lengths, changes, ends, shared beginnings and preemptions. Drafts after the same tokens are
    the same, wherever the draft model was skipped before."""
    draw, prompts = random.Random(5), [prompt_of(llm, *who) for who in (("Mara", 1), ("Jonas Berg", 20), ("Ada", 333))]
    plain = [run(llm, prompt, 0) for prompt in prompts]
    passes.clear()
    preempted.clear()
    chosen: dict[str, int] = {}
    answers: dict[str, list[int]] = {}
    for number in range(24):
        chosen[f"r{number}"] = draw.randrange(len(prompts))
        add(llm, f"r{number}", prompts[chosen[f"r{number}"]], draw.choice([0, 0, 2, MOST]))
        for _ in range(draw.randrange(8)):
            answers |= step(llm)
            # Of the last four, which may run still.
            scheduler_of(llm).slipstream_set_length(f"r{draw.randint(number - 3, number)}", draw.choice([0, 2, MOST]))
        if number % 8 == 7:
            llm.llm_engine.abort_request([f"r{number}"])
            del chosen[f"r{number}"]
    answers |= finish(llm)
    assert preempted
    assert {name: answers[name] for name in chosen} == {name: plain[which] for name, which in chosen.items()}
    seen: dict[tuple[int, int], tuple[int, ...]] = {}
    for (name, position), drafts in passes.proposed.items():
        if name in chosen:
            known = seen.setdefault((chosen[name], position), drafts)
            shared = min(len(known), len(drafts))
            assert known[:shared] == drafts[:shared], (name, position)
            seen[chosen[name], position] = max(known, drafts, key=len)


def test_positions_are_bounds_while_drafts_are_in_flight(llm: LLM) -> None:
    """A hole that begins too late leaves the tokens of rejected drafts in the cache, which proposals seldom show."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    records = Records(runner, 0)
    step = SimpleNamespace(
        finished_req_ids=set(),
        preempted_req_ids=None,
        scheduled_new_reqs=[SimpleNamespace(req_id="a", block_ids=([3, 5],))],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[]),
        slipstream_caps={"a": 4},
    )
    records.note(step)
    asynchronous = runner.vllm_config.scheduler_config.async_scheduling
    rows = [records.rows(batch(*counts)) for counts in ((0, 10, 0), (10, 1, 0), (11, 5, 4), (16, 1, 0), (17, 1, 0))]
    starts = [(row.start, row.latest, row.stop, row.most) for [row] in rows]
    late = 12 if asynchronous else 16  # four drafts may have been rejected
    assert starts == [(0, 0, 10, 10), (10, 10, 11, 11), (11, 11, 12, 16), (late, 16, late + 1, 17), (17, 17, 18, 18)]


def batch(computed: int, scheduled: int, drafts: int) -> Any:
    """A step of one request."""
    return SimpleNamespace(
        req_ids=["a"],
        num_computed_tokens_np=[computed],
        num_scheduled_tokens=[scheduled],
        num_draft_tokens_per_req=[drafts],
    )
