"""Drafts no more than a step needs (V2 model runner, synchronous or asynchronous scheduling).

Stock vLLM 0.32 runs all passes of a draft model in every step, whatever the number of draft tokens that the scheduler
asks for. Here the draft model runs as many passes as that number. Where it is 0, the drafter is skipped. The missing
part of the draft model's cache is computed when a drafting request needs it: `draft_cache.DraftCache` tracks it on the
host, and `catch_up_v2` runs the draft model over it once, on the device.

Other drafters: n-gram keeps no cache and is skipped. EAGLE and MTP need the target's hidden states, which are gone a
step later, and the prefix cache hands their blocks to later requests: vLLM runs them over the step's tokens at length
0, too. Of this one pass, the output layer is skipped, the largest part of a head of one layer; so does vLLM since 0.33.
A full CUDA graph contains it and runs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator

from slipstream_vllm import compatibility, hybrid_v2
from slipstream_vllm.catch_up import Hole
from slipstream_vllm.catch_up_v2 import catch_up
from slipstream_vllm.draft_cache import DraftCache
from slipstream_vllm.hooks import wrap


def install_in_worker() -> None:
    """Make the V2 model runner draft only what is needed."""
    wrap(GPUModelRunner, "execute_model", _noting_requests)
    wrap(StandaloneARSpeculator, "propose", _in_needed_passes)
    wrap(NgramGPUSpeculator, "propose", _unless_none_are_needed)
    wrap(TargetDependentARSpeculator, "propose", _noting_need)
    wrap(DraftModelSpeculator, "sample_draft", _where_needed)


def _noting_requests(execute_model: Callable[..., Any]) -> Callable[..., Any]:
    def execute_model_and_note(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(scheduler_output, "slipstream_caps", None) is not None and compatibility.serves(self.vllm_config):
            _note(self, scheduler_output)
            hybrid_v2.note(self, scheduler_output)
        return execute_model(self, scheduler_output, *args, **kwargs)

    return execute_model_and_note


def _note(runner: Any, scheduler_output: Any) -> None:
    """Give the step to the speculator's records, which exist only where the draft model may be skipped."""
    speculator = runner.speculator
    if not isinstance(speculator, StandaloneARSpeculator):
        return
    if not hasattr(speculator, "slipstream_records"):
        group = _group_of_draft(runner)
        speculator.slipstream_records = None if group is None else Records(runner, group)
    if speculator.slipstream_records is not None:
        speculator.slipstream_records.note(scheduler_output)


def _group_of_draft(runner: Any) -> int | None:
    """The index of the draft model's group of KV caches; None if its blocks cannot be tracked.

    Blocks that come from elsewhere, are split over ranks or slide out of a window cannot. Ranks of data parallelism and
    stages of a pipeline keep vLLM's passes.
    """
    config = runner.vllm_config
    parallel = config.parallel_config
    if config.kv_transfer_config is not None or runner.adaptive_verification is not None:
        return None
    if max(parallel.data_parallel_size, parallel.pipeline_parallel_size, runner.block_tables.cp_size) > 1:
        return None
    layers = runner.speculator.draft_attn_layer_names
    all_groups = runner.kv_cache_config.kv_cache_groups
    groups = [index for index, group in enumerate(all_groups) if not layers.isdisjoint(group.layer_names)]
    if len(groups) != 1 or not all(map(_keeps_all, _specs(all_groups[groups[0]].kv_cache_spec, layers))):
        return None
    return groups[0]


def _specs(spec: Any, layers: AbstractSet[str]) -> list[Any]:
    """The specifications of `layers` in a group's, which has one for each layer where they differ."""
    by_layer = getattr(spec, "kv_cache_specs", None)
    return [spec] if by_layer is None else [by_layer[layer] for layer in layers & by_layer.keys()]


def _keeps_all(spec: Any) -> bool:
    """Whether the blocks of all positions stay."""
    return isinstance(spec, FullAttentionSpec) and spec.sliding_window is None and spec.attention_chunk_size is None


class Row(NamedTuple):
    """One request of the batch: its row, its block ids, and bounds of the positions that the step writes.

    `start` and `stop` are lower bounds of the first and of the one after the last token that stays; `latest` and `most`
    are their upper bounds.
    """

    number: int
    req_id: str
    blocks: list[int]
    start: int
    latest: int
    stop: int
    most: int


class Records:
    """What the host knows of the requests: blocks, caps, and the draft tokens of steps whose result it lacks."""

    def __init__(self, runner: Any, group: int) -> None:
        self._all_token_ids = runner.req_states.all_token_ids
        self._group = group
        self._in_flight = runner.vllm_config.max_concurrent_batches - 1
        self._blocks: dict[str, list[int]] = {}
        self._drafts: dict[str, deque[int]] = {}
        self._caps: dict[str, int] = {}
        self._cache = DraftCache(runner.block_tables.block_sizes[group])

    def note(self, scheduler_output: Any) -> None:
        """Take over the blocks and caps of a step before it runs."""
        gone = {*scheduler_output.finished_req_ids, *(scheduler_output.preempted_req_ids or ())}
        gone.update(new.req_id for new in scheduler_output.scheduled_new_reqs)  # a preempted request is new again
        self._cache.forget(gone)
        for req_id in gone:
            self._blocks.pop(req_id, None)
            self._drafts.pop(req_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._blocks[new.req_id] = list(new.block_ids[self._group])
            self._drafts[new.req_id] = deque(maxlen=self._in_flight)
        cached = scheduler_output.scheduled_cached_reqs
        for req_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is not None:
                self._blocks[req_id] += blocks[self._group]
        self._caps = scheduler_output.slipstream_caps

    def skip(self, input_batch: Any) -> None:
        """Record a step without the draft model."""
        for row in self.rows(input_batch):
            self._cache.write(row.req_id, row.blocks, row.start, row.stop, drafted=False, most=row.most)

    def complete(self, speculator: Any, input_batch: Any) -> None:
        """Before the draft model runs: complete the cache of drafting requests, and record the draft model's writes."""
        holes: list[Hole] = []
        for row in self.rows(input_batch):
            complete = self._cache.complete_until(row.req_id, row.blocks, row.start)
            if self._caps[row.req_id] and complete < row.start:
                holes.append((row.number, complete, row.latest))
                self._cache.fill(row.req_id, row.blocks, complete, row.start)
            self._cache.write(row.req_id, row.blocks, row.start, row.stop, drafted=True, most=row.most)
        if holes:
            catch_up(speculator, self._all_token_ids.gpu, input_batch, holes)

    def rows(self, input_batch: Any) -> list[Row]:
        """The requests of a step. Must be called once for each step, in order."""
        return list(self._rows(input_batch))

    def _rows(self, input_batch: Any) -> Iterator[Row]:
        drafts = input_batch.num_draft_tokens_per_req
        for index, req_id in enumerate(input_batch.req_ids):
            own = 0 if drafts is None else int(drafts[index])
            latest = int(input_batch.num_computed_tokens_np[index])
            start = latest - sum(self._drafts[req_id])
            scheduled = int(input_batch.num_scheduled_tokens[index])
            self._drafts[req_id].append(own)
            blocks = self._blocks[req_id]
            yield Row(index, req_id, blocks, start, latest, start + scheduled - own, latest + scheduled)


def _in_needed_passes(propose: Callable[..., Any]) -> Callable[..., Any]:
    def propose_in_needed_passes(
        self: Any, input_batch: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any
    ) -> torch.Tensor:
        all_passes: int = self.num_speculative_steps
        needed = all_passes if num_speculative_tokens is None else num_speculative_tokens
        records: Records | None = getattr(self, "slipstream_records", None)
        if records is not None and not kwargs.get("dummy_run", False):
            if needed == 0:
                records.skip(input_batch)
                return self.draft_tokens[: input_batch.num_reqs]  # type: ignore[no-any-return]
            records.complete(self, input_batch)
        self.num_speculative_steps = max(needed, 1)
        try:
            propose(self, input_batch, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)
        finally:
            self.num_speculative_steps = all_passes
        return self.draft_tokens[: input_batch.num_reqs]  # type: ignore[no-any-return]

    return propose_in_needed_passes


def _unless_none_are_needed(propose: Callable[..., Any]) -> Callable[..., Any]:
    def propose_unless_none_are_needed(self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("num_speculative_tokens") == 0:
            return self.drafts[: input_batch.num_reqs]  # type: ignore[no-any-return]
        return propose(self, input_batch, *args, **kwargs)  # type: ignore[no-any-return]

    return propose_unless_none_are_needed


def _noting_need(propose: Callable[..., Any]) -> Callable[..., Any]:
    def propose_and_note_need(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        is_served = compatibility.serves(self.vllm_config) and self.acceptance_estimator is None
        self.slipstream_needs_none = is_served and kwargs.get("num_speculative_tokens") == 0
        try:
            return propose(self, *args, **kwargs)  # type: ignore[no-any-return]
        finally:
            self.slipstream_needs_none = False

    return propose_and_note_need


def _where_needed(sample_draft: Callable[..., Any]) -> Callable[..., Any]:
    def sample_where_needed(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if getattr(self, "slipstream_needs_none", False):
            return torch.zeros(len(hidden_states), dtype=self.draft_tokens.dtype, device=hidden_states.device)
        return sample_draft(self, hidden_states, *args, **kwargs)  # type: ignore[no-any-return]

    return sample_where_needed
