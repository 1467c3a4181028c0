"""Whole engines of the V2 model runner in this process, and random requests for them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, NamedTuple

import torch
from heads import save_eagle3_head, save_eagle_head, save_mtp_model
from transformers import AutoTokenizer
from vllm import LLM, RequestOutput, SamplingParams

TARGET = os.environ["SLIPSTREAM_TARGET"]
REQUESTS = int(os.environ.get("SLIPSTREAM_FUZZ_REQUESTS", "16"))
MOST = 4
TOKENS = 24
BLOCKS = 12  # too few for all requests that may run, so that some are preempted
_SCARCE = {"max_num_seqs": 5, "num_gpu_blocks_override": BLOCKS, "max_num_batched_tokens": 96}  # less than a prompt
METHODS = (
    *("draft_model-async", "draft_model-sync", "ngram-sync", "ngram_gpu-async"),
    *("eagle-async", "eagle-sync", "eagle3-async", "mtp-async"),
)
# The next token depends on those before it and on nothing else, so that another server can continue the answer.
RESUMABLE: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0, "ignore_eos": True, "logprobs": 2},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9, "logprobs": 2},
    {"temperature": 1.5, "top_k": 20, "ignore_eos": True},
    {"temperature": 2.0, "allowed_token_ids": list(range(5, 300))},
)
KINDS: tuple[dict[str, Any], ...] = (
    *RESUMABLE,
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 1.8, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"temperature": 2.0, "min_tokens": 6, "bad_words": ["the", " a"]},
    {"temperature": 1.0, "n": 2},
)
CALL = (
    "Summarise this call for the CRM.\n\nAgent: Hello, this is Clara, how can I help you?\nCustomer: Hello, my name is "
    "{}. I was charged twice for my {}.\nAgent: I am sorry to hear that. May I have your account number?\n"
    "Customer: It is {}.\nAgent: I am reversing the second payment now.\nCustomer: Thank you.\nSummary:"
)
NAMES = ("Mara Osterova", "Jonas Berg", "Ada", "Li Wei")
THINGS = ("coffee machine", "train ticket", "lamp")


Heads = dict[str, str]
"""The folder of each method's head; with `mtp`, of the target that has one."""


class Question(NamedTuple):
    """A prompt and a way of sampling. `answers` are the tokens of each choice at length 0."""

    prompt: list[int]
    kind: dict[str, Any]
    answers: list[list[int]]


def prompt_of(tokenizer: Any, draw: random.Random) -> list[int]:
    return list(tokenizer.encode(CALL.format(draw.choice(NAMES), draw.choice(THINGS), draw.randrange(10**6))))


def build_heads(folder: Path) -> Heads:
    """Heads of the target for the methods that have one."""
    tokenizer, draw = AutoTokenizer.from_pretrained(TARGET), random.Random(1)
    prompts = torch.tensor([prompt_of(tokenizer, draw)[:88] for _ in range(24)])
    for method, save in (("eagle", save_eagle_head), ("eagle3", save_eagle3_head), ("mtp", save_mtp_model)):
        save(TARGET, prompts, folder / method)
    return {method: str(folder / method) for method in ("eagle", "eagle3", "mtp")}


def engine_of(name: str, heads: Heads, **options: Any) -> LLM:
    """The engine of one of `METHODS`. VLLM_ENABLE_V1_MULTIPROCESSING must be 0."""
    method, scheduling = name.split("-")
    models = {**heads, "draft_model": TARGET.replace("target", "draft")}
    of_method = {"model": models[method]} if method in models else {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    return LLM(
        model=heads["mtp"] if method == "mtp" else TARGET,  # the target has its head in its own folder
        dtype="float32",
        max_model_len=256,
        block_size=32,
        enforce_eager=True,
        disable_log_stats=False,
        async_scheduling=scheduling == "async",
        scheduler_cls="slipstream_vllm.Scheduler",
        speculative_config={"method": method, "num_speculative_tokens": MOST, **of_method},
        **{**_SCARCE, **options},
    )


def scheduler_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def questions(llm: LLM, draw: random.Random, count: int, kinds: tuple[dict[str, Any], ...] = KINDS) -> list[Question]:
    """Answers at length 0, none of which a draft has touched."""
    tokenizer = llm.get_tokenizer()
    found = [(prompt_of(tokenizer, draw), {**draw.choice(kinds), "seed": draw.randrange(2**40)}) for _ in range(count)]
    plain = [SamplingParams(max_tokens=TOKENS, extra_args={"slipstream_draft_length": 0}, **kind) for _, kind in found]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt, _ in found], plain, use_tqdm=False)
    assert llm.reset_prefix_cache()
    return [Question(*each, tokens_of(output)) for each, output in zip(found, outputs, strict=True)]


def tokens_of(output: RequestOutput) -> list[list[int]]:
    return [list(choice.token_ids) for choice in output.outputs]
