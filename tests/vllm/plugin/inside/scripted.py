"""vLLM's real schedulers with a model runner that plays a script: no weights, no forward pass.

The scripted target says one token for each position of a request; the scripted drafter says the same one, but for every
third position. So which drafts are accepted is known beforehand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from slipstream_vllm.scheduler import AsyncDraftLengthScheduler, DraftLengthScheduler
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_SIZE = 16
MOST = 4
init_none_hash(sha256)
_hash_blocks = get_request_block_hasher(BLOCK_SIZE, sha256)


def said_by_target(position: int) -> int:
    return 100 + position % 50


def said_by_drafter(position: int) -> int:
    return said_by_target(position) + (1 if position % 3 == 0 else 0)


def configuration(folder: str, *, asynchronous: bool, speculative: Mapping[str, Any] | None = None) -> VllmConfig:
    """`speculative`: further fields of the speculative configuration."""
    draft = folder.replace("target", "draft")
    config = EngineArgs(
        model=folder,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        enforce_eager=True,
        scheduler_cls="slipstream_vllm.Scheduler",
        speculative_config={
            "method": "draft_model",
            "model": draft,
            "num_speculative_tokens": MOST,
            **(speculative or {}),
        },
    ).create_engine_config()
    # vLLM turns asynchronous scheduling off where it finds a CPU; the scheduler itself does not ask.
    config.scheduler_config.async_scheduling = asynchronous
    return config


def scheduler_for(config: VllmConfig, *, blocks: int = 200) -> Any:
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=32, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)],
    )
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = BLOCK_SIZE
    chosen = AsyncDraftLengthScheduler if config.scheduler_config.async_scheduling else DraftLengthScheduler
    return chosen(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=True,
    )


def request(
    name: str,
    length: int | None,
    *,
    prompt: int = 20,
    output: int = 40,
    label: str | None = None,
    adaptive: bool = False,
    protected: bool = False,
) -> Request:
    extra: dict[str, Any] = {} if length is None else {"slipstream_draft_length": length}
    if adaptive:
        extra["slipstream_adaptive"] = 1
    if protected:
        extra["slipstream_protect"] = 1
    if label is not None:
        extra["slipstream_class"] = label
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, extra_args=extra or None)
    return Request(
        request_id=f"{name}-0123abcd",
        prompt_token_ids=list(range(1000, 1000 + prompt)),
        sampling_params=params,
        pooling_params=None,
        block_hasher=_hash_blocks,
    )


@dataclass
class Step:
    """What one step verified: drafts per request, and how many tokens the drafter was asked for."""

    verified: dict[str, int]
    proposed: int


@dataclass
class Engine:
    """The engine's loop around a scheduler: schedule, run, update; asynchronous schedulers have two steps in flight."""

    scheduler: Any
    said: dict[str, list[int]] = field(default_factory=dict)  # by the target, whether or not the engine keeps it
    received: dict[str, list[int]] = field(default_factory=dict)  # by the client
    finished: set[str] = field(default_factory=set)
    counts: dict[str, Any] = field(default_factory=dict)  # of drafts, as the client has them last
    stats: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    _drafts: dict[str, int] = field(default_factory=dict)  # tokens that the drafter proposed last, per request
    _in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = field(default_factory=deque)
    _computed: dict[str, int] = field(default_factory=dict)
    _prompts: dict[str, int] = field(default_factory=dict)

    @property
    def is_async(self) -> bool:
        return isinstance(self.scheduler, AsyncDraftLengthScheduler)

    def add(self, *requests: Request) -> None:
        for new in requests:
            self.said[new.request_id] = []
            self.received[new.request_id] = []
            self._prompts[new.request_id] = new.num_prompt_tokens
            self.scheduler.add_request(new)

    def schedule(self) -> None:
        """Begin a step."""
        output = self.scheduler.schedule()
        self._in_flight.append((output, self._run(output)))

    def step(self) -> None:
        self.schedule()
        if len(self._in_flight) == (2 if self.is_async else 1):
            self._finish_step()

    def run(self, *, most_steps: int = 500) -> None:
        """Run until no request is left."""
        for _ in range(most_steps):
            if not self.scheduler.has_requests():
                self.drain()
                return
            self.step()
        raise AssertionError(f"requests are left after {most_steps} steps: {list(self.scheduler.requests)}")

    def drain(self) -> None:
        while self._in_flight:
            self._finish_step()

    def _finish_step(self) -> None:
        output, result = self._in_flight.popleft()
        for outputs in self.scheduler.update_from_output(output, result).values():
            for item in outputs.outputs:
                self.received[item.request_id] += item.new_token_ids
                if item.spec_decode_metrics is not None:
                    self.counts[item.request_id] = item.spec_decode_metrics
                if item.finish_reason is not None:
                    self.finished.add(item.request_id)
            if outputs.scheduler_stats is not None:
                self.stats.append(outputs.scheduler_stats)
        if not self.is_async and not self.scheduler.slipstream_idle:
            rows = {i: [said_by_drafter(len(self.said[i]) + at) for at in range(n)] for i, n in self._drafts.items()}
            self.scheduler.update_draft_token_ids(DraftTokenIds(list(rows), list(rows.values())))

    def _run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Verify and draft, as workers do."""
        for req_id in output.scheduled_cached_reqs.resumed_req_ids:
            self._computed.pop(req_id, None)
        ids = list(output.num_scheduled_tokens)
        sampled = [self._verify(req_id, output) for req_id in ids]
        if ids:
            verified = {i: len(output.scheduled_spec_decode_tokens.get(i, ())) for i in ids}
            self.steps.append(Step(verified, output.num_spec_tokens_to_schedule))
        self._drafts = dict.fromkeys(ids, output.num_spec_tokens_to_schedule)
        return ModelRunnerOutput(
            req_ids=ids, req_id_to_index={i: n for n, i in enumerate(ids)}, sampled_token_ids=sampled
        )

    def _verify(self, req_id: str, output: SchedulerOutput) -> list[int]:
        drafts = output.scheduled_spec_decode_tokens.get(req_id, [])
        said = self.said[req_id]
        length = self._prompts[req_id] + len(said)
        computed = self._start(req_id, output) + output.num_scheduled_tokens[req_id]
        if computed - len(drafts) < length:  # a part of the prompt
            self._computed[req_id] = computed
            return []
        if self.is_async and drafts:
            assert len(drafts) <= self._drafts.get(req_id, 0), "verifies more than the drafter proposed"
            assert all(token == -1 for token in drafts)
            drafts = [said_by_drafter(len(said) + at) for at in range(len(drafts))]
        new: list[int] = []
        for draft in [*drafts, None]:
            new.append(said_by_target(len(said) + len(new)))
            if draft != new[-1]:
                break
        said.extend(new)
        self._computed[req_id] = length + len(new) - 1
        return new

    def _start(self, req_id: str, output: SchedulerOutput) -> int:
        for new in output.scheduled_new_reqs:
            if new.req_id == req_id:
                return int(new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        if req_id in cached.resumed_req_ids:
            return int(cached.num_computed_tokens[cached.req_ids.index(req_id)])
        return self._computed[req_id]
