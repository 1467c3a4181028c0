"""Two drafts in one server (V2 model runner): beside the drafter's, a copy of the request's own text.

vLLM's kernel for n-grams finds the last tokens of each request in its prompt and answer, on the device. `DraftChoice`
takes one draft for each request, and nothing waits for the device. The scheduler learns with the results of a step
which drafts were copied. Where all requests of a batch copy long passages, it has the drafter's passes left out:
`draft_passes_v2` completes the cache of a draft model later, and a head still reads the tokens of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.worker.gpu.async_utils import async_copy_to_np
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator

from slipstream_vllm.draft_choice import LONGEST_MATCH, Copies, DraftChoice
from slipstream_vllm.hooks import wrap

_LONGEST_NGRAM, _SHORTEST_NGRAM = 3, 2


def install_in_worker() -> None:
    """Make the V2 model runner report which drafts were copied."""
    wrap(GPUModelRunner, "sample_tokens", _reporting)


def attach(runner: Any) -> None:
    """Give the runner's drafter, if this rank has it, a second draft."""
    if runner.speculator is not None:
        runner.speculator.slipstream_hybrid = Hybrid(runner)


def note(runner: Any, scheduler_output: Any) -> None:
    """Before a step: take over whether the drafter is needed."""
    hybrid: Hybrid | None = getattr(runner.speculator, "slipstream_hybrid", None)
    if hybrid is not None:
        hybrid.needs_drafter = scheduler_output.slipstream_needs_drafter


def _reporting(sample_tokens: Callable[..., Any]) -> Callable[..., Any]:
    def sample_tokens_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
        hybrid: Hybrid | None = getattr(self.speculator, "slipstream_hybrid", None)
        if hybrid is None or self.execute_model_state is None:
            return sample_tokens(self, *args, **kwargs)
        # Before the next drafts are made. The output waits for a later event, so this copy has ended by then.
        matched = async_copy_to_np(hybrid.choice.matched[self.execute_model_state.input_batch.idx_mapping])
        output = sample_tokens(self, *args, **kwargs)
        output.model_runner_output.slipstream_matched = matched
        return output

    return sample_tokens_and_report


class Hybrid:
    """Replaces the `propose` of a runner's drafter."""

    needs_drafter = True

    def __init__(self, runner: Any) -> None:
        self._requests, device = runner.req_states, runner.device
        tokens = self._requests.all_token_ids
        tokens.gpu = torch.zeros_like(tokens.gpu)  # in the device's memory, as vLLM has them for n-grams
        self._longest: int = runner.num_speculative_steps
        self._lookup = NgramGPUSpeculator(_with_lengths(runner.vllm_config), device, self._requests)
        self._propose: Callable[..., torch.Tensor] = runner.speculator.propose
        self.choice = DraftChoice(runner.max_num_reqs, self._longest, device)
        runner.speculator.propose = self.propose

    def propose(  # the runner's arguments, of which the look-up reads some
        self,
        input_batch: Any,
        metadata: Any,
        slot_mappings: Any,
        hidden: torch.Tensor,
        aux_hidden: Any,
        num_sampled: torch.Tensor,
        *args: Any,
        num_speculative_tokens: int | None = None,
        dummy_run: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The drafts of a batch (B, K)."""
        width = self._longest if num_speculative_tokens is None else num_speculative_tokens
        is_copying = not (self.needs_drafter or dummy_run)
        arguments = (input_batch, metadata, slot_mappings, hidden, aux_hidden, num_sampled, *args)
        drafts = self._propose(
            *arguments, num_speculative_tokens=0 if is_copying else width, dummy_run=dummy_run, **kwargs
        )
        if dummy_run or width == 0:
            return drafts
        slots = input_batch.idx_mapping.long()
        ends = self._requests.total_len.gpu[slots].long()
        self.choice.learn(slots, ends, num_sampled, self._after(slots, ends - num_sampled))
        self._lookup.propose(*arguments)
        return self.choice.choose(slots, ends, self._copies(slots, ends), None if is_copying else drafts, width)

    def _after(self, slots: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """The K tokens from `starts` (B,) on, as far as they exist."""
        columns = starts[:, None] + torch.arange(self._longest, device=starts.device)
        return self._token(slots, columns)

    def _copies(self, slots: torch.Tensor, ends: torch.Tensor) -> Copies:
        """What follows the matches that the kernel found: text that repeats itself goes on in its period."""
        score = self._lookup.scratch[: len(slots)].amax(1)  # n · (longest text + 1) + position + 1; 0 without a match
        size = self._lookup.max_model_len + 1
        ngram = (score - 1) // size
        starts = (score - 1) % size + ngram
        back = torch.arange(1, LONGEST_MATCH + 1, device=starts.device)
        earlier, last = starts[:, None] - back, ends[:, None] - back
        is_equal = (self._token(slots, earlier) == self._token(slots, last)) & (earlier >= 0)
        matched = torch.where(score > 0, is_equal.cumprod(1).sum(1), 0)
        column = torch.arange(self._longest, device=starts.device)
        period = (ends - starts).clamp(min=1)
        return Copies(self._token(slots, starts[:, None] + column % period[:, None]), matched)

    def _token(self, slots: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """The tokens of `slots` (B,) at `columns` (B, N), where these are within the text."""
        tokens = self._requests.all_token_ids.gpu
        return tokens[slots[:, None], columns.clamp(0, tokens.shape[1] - 1)].long()  # type: ignore[no-any-return]


def _with_lengths(vllm_config: Any) -> Any:
    """The settings that vLLM's look-up reads, with the lengths of its n-grams."""
    lengths = SimpleNamespace(
        prompt_lookup_min=_SHORTEST_NGRAM,
        prompt_lookup_max=_LONGEST_NGRAM,
        num_speculative_tokens=vllm_config.num_speculative_tokens,
    )
    return SimpleNamespace(
        speculative_config=lengths,
        scheduler_config=vllm_config.scheduler_config,
        model_config=vllm_config.model_config,
    )
