"""Sampling with and without drafts beside vLLM's own sampler without speculation, on scripted logits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scripted import MOST, configuration
from slipstream_vllm.acceptance import accept_equal, install_in_worker
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

TARGET = os.environ["SLIPSTREAM_TARGET"]
CPU = torch.device("cpu")
WORDS = 64
START, END = 60, 61  # of thinking
BUDGET = 9
OUTPUT = 24


def sampling(requests: int, **fields: Any) -> SamplingMetadata:
    """What vLLM hands to its samplers for greedy requests, but for `fields`."""
    nothing = torch.zeros(requests)
    return SamplingMetadata(
        **{
            "temperature": None,
            "all_greedy": True,
            "all_random": False,
            "top_p": None,
            "top_k": None,
            "generators": {},
            "max_num_logprobs": None,
            "no_penalties": True,
            "prompt_token_ids": None,
            "frequency_penalties": nothing,
            "presence_penalties": nothing,
            "repetition_penalties": nothing,
            "output_token_ids": [[] for _ in range(requests)],
            "allowed_token_ids_mask": None,
            "bad_words_token_ids": {},
            "logitsprocs": LogitsProcessors(),
            "spec_token_ids": [[] for _ in range(requests)],
            **fields,
        }
    )


def verification(drafts: Sequence[Sequence[int]]) -> SpecDecodeMetadata:
    """vLLM's layout: each request's rows are adjacent, one per draft and one more."""
    made = SpecDecodeMetadata.make_dummy([list(tokens) for tokens in drafts], CPU)
    last_rows = np.cumsum([len(tokens) + 1 for tokens in drafts]) - 1
    made.bonus_logits_indices = torch.from_numpy(last_rows)
    made.target_logits_indices = torch.tensor(
        [row for row in range(last_rows[-1] + 1) if row not in last_rows], dtype=torch.int64
    )
    made.logits_indices = torch.arange(last_rows[-1] + 1)
    return made


class Thinkers:
    """Two greedy requests; the prompt of the second one begins to think, and its budget is `BUDGET` tokens."""

    def __init__(self, *, draft_tokens: int) -> None:
        config = SimpleNamespace(reasoning_start_token_ids=[START], reasoning_end_token_ids=[END])
        holder = ThinkingBudgetStateHolder(config, 2, draft_tokens, CPU, False)  # type: ignore[arg-type]  # two fields
        self.outputs: list[list[int]] = [[], []]
        budgets = (SimpleNamespace(thinking_token_budget=None), SimpleNamespace(thinking_token_budget=BUDGET))
        added = [(row, budgets[row], [1, START], self.outputs[row]) for row in range(2)]
        holder.sync_batch(BatchUpdate(batch_size=2, removed=[], added=added, moved=[]))  # type: ignore[arg-type]
        self.metadata = sampling(2, output_token_ids=self.outputs, thinking_budget_state_holder=holder)

    def logits(self, counts: Sequence[int]) -> torch.Tensor:
        """The target's word depends on the position alone; it never ends its thinking by itself."""
        rows = [said(row, len(self.outputs[row]) + at) for row in range(2) for at in range(counts[row])]
        return torch.nn.functional.one_hot(torch.tensor(rows), WORDS).to(torch.float32)


def said(request: int, position: int) -> int:
    return 10 + 20 * request + position % 17


def plain_texts() -> list[list[int]]:
    """The texts of the server without speculation."""
    thinkers = Thinkers(draft_tokens=0)
    for _ in range(OUTPUT):
        drawn = Sampler()(thinkers.logits([1, 1]), thinkers.metadata).sampled_token_ids
        for output, [token] in zip(thinkers.outputs, drawn.tolist(), strict=True):
            output.append(token)
    return thinkers.outputs


@pytest.fixture(scope="module")
def runner() -> Any:
    """vLLM's model runner with its samplers and no model."""
    install_in_worker()
    made = GPUModelRunner.__new__(GPUModelRunner)
    made.vllm_config = configuration(TARGET, asynchronous=False)
    made.use_async_scheduling = False
    made.sampler = Sampler()
    made.rejection_sampler = RejectionSampler(made.sampler)
    return made


def speculative_texts(runner: Any, lengths: Iterator[tuple[int, int]]) -> list[list[int]]:
    """The same texts with drafts of these lengths, one pair per step; every third drafted token is wrong."""
    thinkers = Thinkers(draft_tokens=MOST)
    while min(map(len, thinkers.outputs)) < OUTPUT:
        drafts = [drafted(row, len(thinkers.outputs[row]), length) for row, length in enumerate(next(lengths))]
        for kept, tokens in zip(thinkers.metadata.spec_token_ids or (), drafts, strict=True):
            kept[:] = tokens
        runner.input_batch = SimpleNamespace(
            sampling_metadata=thinkers.metadata, generators={}, update_async_output_token_ids=lambda: None
        )
        counts = [len(tokens) + 1 for tokens in drafts]
        drawn = runner._sample(thinkers.logits(counts), verification(drafts)).sampled_token_ids
        for output, tokens in zip(thinkers.outputs, drawn.tolist(), strict=True):
            output.extend(token for token in tokens if token != -1)
    return [output[:OUTPUT] for output in thinkers.outputs]


def drafted(request: int, position: int, length: int) -> list[int]:
    return [said(request, at) + (at % 3 == 2) for at in range(position, position + length)]


@pytest.mark.parametrize("lengths", [(0, 0), (4, 4), (0, 4), (4, 0), (1, 3), (3, 2)])
def test_a_thinking_budget_ends_its_own_request_at_any_length(runner: Any, lengths: tuple[int, int]) -> None:
    expected = plain_texts()
    assert [text.count(END) for text in expected] == [0, 1]
    assert speculative_texts(runner, repeat(lengths)) == expected


@pytest.mark.parametrize("seed", range(8))
def test_a_thinking_budget_holds_while_lengths_change(runner: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = ((int(first), int(second)) for first, second in draw.integers(0, MOST + 1, (10 * OUTPUT, 2)))
    assert speculative_texts(runner, lengths) == plain_texts()


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
@pytest.mark.parametrize("temperatures", [(0.0, 0.0), (0.7, 1.6), (0.0, 1.6)], ids=["greedy", "sampled", "mixed"])
def test_scores_are_those_of_the_plain_sampler(mode: Any, temperatures: tuple[float, float]) -> None:
    """Every mode of --logprobs-mode, for each row that was emitted."""
    logits = 3 * torch.randn(5, WORDS, generator=torch.Generator().manual_seed(3))
    drafts = [[int(logits[0].argmax()), int(logits[1].argmax())], [int(logits[3].argmax())]]
    sampler = Sampler(logprobs_mode=mode)
    metadata = scored(temperatures, spec_token_ids=drafts)
    output = accept_equal(RejectionSampler(sampler), logits.clone(), metadata, verification(drafts))
    tokens, scores = RejectionSampler.parse_output(
        output.sampled_token_ids, WORDS, logprobs_tensors=output.logprobs_tensors
    )
    rows = [first + at for first, emitted in zip((0, 3), tokens, strict=True) for at in range(len(emitted))]
    assert len(scores.logprobs) == len(rows)
    for row, ours, ids in zip(rows, scores.logprobs, scores.logprob_token_ids, strict=True):
        owner = 0 if row < 3 else 1
        theirs = sampler(logits[[row, row]].clone(), scored(temperatures)).logprobs_tensors
        best = dict(zip(theirs.logprob_token_ids[owner, 1:].tolist(), theirs.logprobs[owner, 1:].tolist(), strict=True))
        assert {int(token): float(value) for token, value in zip(ids[1:], ours[1:], strict=True)} == pytest.approx(best)
        assert float(ours[0]) == pytest.approx(best[int(ids[0])])


def scored(temperatures: Sequence[float], **fields: Any) -> SamplingMetadata:
    """Two requests with top-k 5 that ask for 8 log-probabilities."""
    hot = [temperature > 0 for temperature in temperatures]
    return sampling(
        2,
        temperature=torch.tensor(temperatures) if any(hot) else None,
        all_greedy=not any(hot),
        all_random=all(hot),
        top_k=torch.tensor([5, 5]) if any(hot) else None,
        max_num_logprobs=8,
        **fields,
    )
