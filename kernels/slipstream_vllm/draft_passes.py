"""Skips drafting in steps in which no request drafts (synchronous scheduling, V1 model runner).

Stock vLLM runs the drafter once per step even for 0 draft tokens, which keeps the draft model's KV cache complete, and
then requests drafts from the workers. Here both are skipped. The missing part of the cache is computed when a drafting
request needs it: `draft_cache.DraftCache` tracks the positions, and `catch_up` runs the draft model over them once.

Other drafters: n-gram keeps no cache and can be skipped. EAGLE and MTP need the target's hidden states, which are gone
a step later, and suffix decoding adds every token to its tree, so these are not skipped. With asynchronous
scheduling nothing is skipped, because V1's worker does not have the tokens on the host (V2: `draft_passes_v2`). vLLM's
own pass keeps these caches complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from slipstream_vllm import compatibility, settings
from slipstream_vllm.draft_cache import DraftCache
from slipstream_vllm.drafters import may_skip
from slipstream_vllm.hooks import wrap


def install_in_engine() -> None:
    """Skip the engine's round trip for drafts if the step has none."""
    from vllm.v1.engine.core import EngineCore

    wrap(EngineCore, "post_step", _without_empty_round_trip)


def install_in_worker() -> None:
    """Skip the drafter in steps in which no request drafts."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    wrap(GPUModelRunner, "_update_states", _noting_each_step)
    wrap(GPUModelRunner, "propose_draft_token_ids", _where_drafts_are_needed)


def _without_empty_round_trip(post_step: Callable[..., Any]) -> Callable[..., Any]:
    def post_drafting_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Only the plugin's scheduler has the attribute; with asynchronous scheduling vLLM makes no round trip.
        if not getattr(self.scheduler, "slipstream_idle", False):
            post_step(self, *args, **kwargs)

    return post_drafting_step


def _noting_each_step(update_states: Callable[..., Any]) -> Callable[..., Any]:
    # Not in the drafter's hook: steps without tokens also end requests, and vLLM itself skips the drafter near the
    # draft model's maximum context.
    def update_states_and_cache(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        corrections = update_states(self, scheduler_output, *args, **kwargs)
        if _may_skip(self) and self.speculative_config.uses_draft_model():
            _note_step(self, scheduler_output)
        return corrections

    return update_states_and_cache


def _where_drafts_are_needed(propose: Callable[..., Any]) -> Callable[..., Any]:
    def propose_where_needed(self: Any, scheduler_output: Any, sampled: Any, *args: Any, **kwargs: Any) -> Any:
        caps = getattr(scheduler_output, "slipstream_caps", None)
        if caps is None or not _may_skip(self):
            return propose(self, scheduler_output, sampled, *args, **kwargs)
        if scheduler_output.num_spec_tokens_to_schedule == 0 or not any(caps.values()):
            self._draft_probs = self._draft_prob_req_ids = None
            return [[] for _ in self.input_batch.req_ids]
        if self.speculative_config.uses_draft_model():
            _complete_cache(self, scheduler_output, caps)
        return propose(self, scheduler_output, sampled, *args, **kwargs)

    return propose_where_needed


def _may_skip(runner: Any) -> bool:
    if runner.use_async_scheduling or runner.speculative_config is None or settings.ranks_in_step(runner.vllm_config):
        return False
    if not compatibility.serves(runner.vllm_config):
        return False
    drafter = getattr(runner, "drafter", None)  # with pipeline parallelism, only the last rank has one
    return drafter is not None and may_skip(runner.speculative_config, drafter)


class _Row(NamedTuple):
    """One request of the batch: its index, its block ids, and the positions that the step writes."""

    batch_index: int
    req_id: str
    blocks: Any
    start: int
    stop: int


def _rows(runner: Any, scheduler_output: Any) -> Iterator[_Row]:
    blocks = _block_table(runner).block_table.np
    for index, req_id in enumerate(runner.input_batch.req_ids):
        start = int(runner.input_batch.num_computed_tokens_cpu[index])
        yield _Row(index, req_id, blocks[index], start, start + scheduler_output.num_scheduled_tokens[req_id])


def _block_table(runner: Any) -> Any:
    return runner.input_batch.block_table[runner.drafter.kv_cache_gid]


def _note_step(runner: Any, scheduler_output: Any) -> None:
    """Record the step as one without the draft model. `_complete_cache` corrects this if the drafter runs."""
    cache: DraftCache | None = getattr(runner, "_slipstream_draft_cache", None)
    if cache is None:
        cache = runner._slipstream_draft_cache = DraftCache(_block_table(runner).block_size)
    cache.forget(scheduler_output.finished_req_ids)
    cache.forget(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
    for row in _rows(runner, scheduler_output):
        cache.write(row.req_id, row.blocks, row.start, row.stop, drafted=False)


def _complete_cache(runner: Any, scheduler_output: Any, caps: dict[str, int]) -> None:
    """Before the drafter runs: complete the cache of drafting requests, and record the drafter's writes."""
    cache: DraftCache = runner._slipstream_draft_cache
    holes: list[tuple[int, int, int]] = []
    for row in _rows(runner, scheduler_output):
        complete = cache.complete_until(row.req_id, row.blocks, row.start)
        if caps[row.req_id] and complete < row.start:
            holes.append((row.batch_index, complete, row.start))
            cache.fill(row.req_id, row.blocks, complete, row.start)
        cache.write(row.req_id, row.blocks, row.start, row.stop, drafted=True)
    if holes:
        from slipstream_vllm.catch_up import catch_up

        catch_up(runner, _block_table(runner), holes)
