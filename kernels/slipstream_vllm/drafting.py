"""Drafting costs nothing in a step in which no request drafts (synchronous scheduling, V1 model runner).

Stock vLLM runs the drafter once per step even for 0 draft tokens, so that the draft model's KV cache stays complete,
and then asks the workers for drafts. Here both are skipped. What the draft model missed is computed when a request
that drafts needs it: `draft_cache.DraftCache` knows the positions, `catch_up` runs the draft model over them once.

Other drafters: n-gram and Medusa keep no cache, so skipping them leaves nothing behind. EAGLE and MTP need the target's
hidden states, which are gone a step later: they are not skipped, and neither is anything under asynchronous scheduling,
where the worker does not know the tokens on the host. vLLM's own pass for 0 draft tokens keeps these caches complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream_vllm import compatibility
from slipstream_vllm.draft_cache import DraftCache
from slipstream_vllm.hooks import wrap

_STATELESS_METHODS = ("ngram", "medusa")


def install_in_engine() -> None:
    """Skip the engine's round trip for drafts where none were asked for."""
    from vllm.v1.engine.core import EngineCore

    wrap(EngineCore, "post_step", _without_empty_round_trip)


def install_in_worker() -> None:
    """Skip the drafter in steps in which no request drafts."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    wrap(GPUModelRunner, "propose_draft_token_ids", _where_drafts_are_needed)


def _without_empty_round_trip(post_step: Callable[..., Any]) -> Callable[..., Any]:
    def post_drafting_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Only the plugin's scheduler has the attribute; with asynchronous scheduling vLLM makes no round trip.
        if not getattr(self.scheduler, "slipstream_idle", False):
            post_step(self, *args, **kwargs)

    return post_drafting_step


def _where_drafts_are_needed(propose: Callable[..., Any]) -> Callable[..., Any]:
    def propose_where_needed(self: Any, scheduler_output: Any, sampled: Any, *args: Any, **kwargs: Any) -> Any:
        caps = getattr(scheduler_output, "slipstream_caps", None)
        if caps is None or not _may_skip(self):
            return propose(self, scheduler_output, sampled, *args, **kwargs)
        drafts = scheduler_output.num_spec_tokens_to_schedule > 0
        if self.speculative_config.uses_draft_model():
            _keep_cache(self, scheduler_output, caps, drafts)
        if not drafts:
            self._draft_probs = self._draft_prob_req_ids = None
            return [[] for _ in self.input_batch.req_ids]
        return propose(self, scheduler_output, sampled, *args, **kwargs)

    return propose_where_needed


def _may_skip(runner: Any) -> bool:
    if runner.use_async_scheduling or not compatibility.serves(runner.vllm_config):
        return False
    speculative = runner.speculative_config
    if speculative.uses_draft_model():
        return not runner.drafter.supports_mm_inputs
    return speculative.method in _STATELESS_METHODS


def _keep_cache(runner: Any, scheduler_output: Any, caps: dict[str, int], drafts: bool) -> None:
    """Before the drafter of this step: fill what requests that draft miss, and note what this step writes."""
    table = runner.input_batch.block_table[runner.drafter.kv_cache_gid]
    cache: DraftCache | None = getattr(runner, "_slipstream_draft_cache", None)
    if cache is None:
        cache = runner._slipstream_draft_cache = DraftCache(table.block_size)
    cache.forget(scheduler_output.finished_req_ids)
    cache.forget(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
    holes: list[tuple[int, int, int]] = []
    for row, req_id in enumerate(runner.input_batch.req_ids):
        start = int(runner.input_batch.num_computed_tokens_cpu[row])
        blocks = table.block_table.np[row]
        complete = cache.complete_until(req_id, blocks, start)
        if drafts and caps[req_id] and complete < start:
            holes.append((row, complete, start))
            cache.fill(req_id, blocks, complete, start)
        cache.write(req_id, blocks, start, start + scheduler_output.num_scheduled_tokens[req_id], drafted=drafts)
    if holes:
        from slipstream_vllm.catch_up import catch_up

        catch_up(runner, table, holes)
