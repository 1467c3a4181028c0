"""Acceptance by equality: a draft token is accepted iff the server's own sampler draws the same token for that row.

Every row is sampled as without speculation: same filters, penalties, masks, grammar and log-probabilities. The first
row whose draw differs from its draft emits that draw and ends the step, so the output has the target's distribution for
any draft. A seeded request advances its generator only for emitted rows, so it gives the same tokens at every draft
length. The number of emitted rows must be known for that: with asynchronous scheduling, a step with a seeded request
waits for the device. Requests without a seed share the device's generator, so their tokens depend on the batch.

With one-hot drafts (vLLM's default, `draft_sample_method: greedy`) both rules accept with the same probability. With
the draft model's probabilities, vLLM's rejection sampling accepts more tokens at high temperatures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from slipstream_vllm import compatibility, seeds, settings
from slipstream_vllm.hooks import wrap
from slipstream_vllm.no_drafts import verifies_nothing


def install_in_worker() -> None:
    """Make the V1 model runner accept by equality if the setting requires it."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    wrap(GPUModelRunner, "_sample", _by_equality)


def _by_equality(sample: Callable[..., Any]) -> Callable[..., Any]:
    def sample_by_equality(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        if not compatibility.serves(self.vllm_config):
            return sample(self, logits, spec_decode_metadata)
        seeds.set_aside(self)
        if self.vllm_config.speculative_config is None:
            return sample(self, logits, spec_decode_metadata)
        if spec_decode_metadata is None or verifies_nothing(self, spec_decode_metadata.num_draft_tokens):
            # One row per request, sampled as vLLM samples the last row of a verification. A thinking budget of a
            # speculating server finds its row only this way. vLLM before 0.32 takes the first request's row instead.
            self.input_batch.update_async_output_token_ids()
            return self.sampler(logits, self.input_batch.sampling_metadata, predict_bonus_token=True)
        if settings.acceptance(self.vllm_config) != "equality":
            return sample(self, logits, spec_decode_metadata)
        self.input_batch.update_async_output_token_ids()
        if self.use_async_scheduling and self._draft_token_req_ids is not None:
            drafts, _ = self._get_draft_token_ids_cpu()
            self.input_batch.update_async_spec_token_ids(drafts)
        return accept_equal(self.rejection_sampler, logits, self.input_batch.sampling_metadata, spec_decode_metadata)

    return sample_by_equality


class RowGenerators(dict[int, torch.Generator]):
    """One generator for several rows of a request, with its state before each row's draw.

    vLLM's samplers draw once per entry of `items()`, in order.
    """

    def __init__(self, entries: dict[int, torch.Generator]) -> None:
        super().__init__(entries)
        self._before: dict[int, torch.Tensor] = {}

    def items(self) -> Iterator[tuple[int, torch.Generator]]:  # type: ignore[override]  # a view cannot take states
        for row, generator in super().items():
            self._before[row] = generator.get_state()
            yield row, generator

    def rewind(self, row: int) -> None:
        """Undo the draws of `row` and of the rows after it of the same request."""
        if row in self._before:
            self[row].set_state(self._before[row])


def accept_equal(
    rejection_sampler: Any, logits: torch.Tensor, sampling: SamplingMetadata, drafts: SpecDecodeMetadata
) -> SamplerOutput:
    """Sample each row and keep each request's rows up to the first one that differs from its draft.

    Args:
        logits: (drafts + requests, vocabulary); a request's rows are adjacent, one per draft token and one more.
    Returns:
        token ids (requests, longest draft + 1), int32, -1 after the last emitted token; log-probabilities in vLLM's
        layout.
    """
    counts = torch.tensor(drafts.num_draft_tokens) + 1
    first = torch.cumsum(counts, 0) - counts  # each request's first row, on the host
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    processed = _processed(rejection_sampler, logits.to(torch.float32, copy=True), sampling, drafts)
    generators = RowGenerators(_per_row(sampling.generators, first.tolist(), counts.tolist()))
    sampled, scored = rejection_sampler.sampler.sample(processed, _per_row_metadata(sampling, owner, generators))
    tokens = _emitted(sampled, drafts, first, counts)
    _rewind(generators, sampling, tokens, first, counts)
    # With --logprobs-mode `processed_*`, the sampler scores the rows itself.
    scored = logits if scored is None else scored
    return SamplerOutput(tokens, _logprobs(rejection_sampler, scored, tokens, sampling, drafts))


def _processed(
    rejection_sampler: Any, logits: torch.Tensor, sampling: SamplingMetadata, drafts: SpecDecodeMetadata
) -> torch.Tensor:
    """Apply penalties, masks and bad words to every row, with the drafts before it counted as output.

    vLLM does this for rows with a draft. One placeholder draft per request includes its last row.
    """
    spec_token_ids = None
    if sampling.spec_token_ids is not None:
        spec_token_ids = [[*tokens, PLACEHOLDER_TOKEN_ID] for tokens in sampling.spec_token_ids]
    extended = replace(sampling, spec_token_ids=spec_token_ids, thinking_budget_state_holder=None)
    rows = SimpleNamespace(num_draft_tokens=[count + 1 for count in drafts.num_draft_tokens])
    processed: torch.Tensor = rejection_sampler.apply_logits_processors(logits, extended, rows)
    _end_thinking(processed, sampling, drafts)
    return processed


def _end_thinking(logits: torch.Tensor, sampling: SamplingMetadata, drafts: SpecDecodeMetadata) -> None:
    """Force the end of thinking where `thinking_token_budget` is exhausted, by changing `logits`.

    The budget holder expects the calls in the order of vLLM's rejection sampler: last rows, then rows with a draft.
    """
    holder = sampling.thinking_budget_state_holder
    if holder is None or not holder.has_tracked_requests():
        return
    holder.update_state(sampling.output_token_ids, sampling.spec_token_ids)
    for rows, is_last in ((drafts.bonus_logits_indices, True), (drafts.target_logits_indices, False)):
        logits[rows] = holder.apply_to_logits(logits[rows], is_last, sampling.spec_token_ids)


def _per_row(generators: dict[int, torch.Generator], first: list[int], counts: list[int]) -> dict[int, torch.Generator]:
    return {
        row: generator
        for request, generator in generators.items()
        for row in range(first[request], first[request] + counts[request])
    }


def _per_row_metadata(sampling: SamplingMetadata, owner: torch.Tensor, generators: RowGenerators) -> SamplingMetadata:
    """The sampling metadata per row: temperature, top-k, top-p and the generators."""

    def rows(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values[owner.to(values.device)]

    return replace(
        sampling,
        temperature=rows(sampling.temperature),
        top_p=rows(sampling.top_p),
        top_k=rows(sampling.top_k),
        generators=generators,
        logprob_token_ids=None,
    )


def _emitted(
    sampled: torch.Tensor, drafts: SpecDecodeMetadata, first: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Arrange rows as (requests, longest draft + 1), with placeholders after the first difference."""
    device = sampled.device
    columns = torch.arange(max(drafts.num_draft_tokens) + 1)
    row = first[:, None] + columns[None, :]
    exists = (columns[None, :] < counts[:, None]).to(device)
    tokens = sampled[row.clamp(max=len(sampled) - 1).to(device)].to(torch.int32)
    has_draft = columns[None, :-1] < counts[:, None] - 1
    proposed = torch.full(has_draft.shape, PLACEHOLDER_TOKEN_ID, dtype=torch.int32)
    proposed = proposed.to(device).masked_scatter(has_draft.to(device), drafts.draft_token_ids.to(torch.int32))
    equal = torch.ones_like(tokens, dtype=torch.bool)
    equal[:, 1:] = torch.cumprod((tokens[:, :-1] == proposed).to(torch.int32), dim=1).bool()
    return tokens.masked_fill(~(equal & exists), PLACEHOLDER_TOKEN_ID)


def _rewind(
    generators: RowGenerators,
    sampling: SamplingMetadata,
    tokens: torch.Tensor,
    first: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Rewind each seeded request's generator to one draw per emitted token."""
    if not generators:
        return
    emitted = (tokens != PLACEHOLDER_TOKEN_ID).sum(dim=1).tolist()
    for request in sampling.generators:
        if emitted[request] < counts[request]:
            generators.rewind(int(first[request]) + emitted[request])


def _logprobs(
    rejection_sampler: Any,
    scored: torch.Tensor,
    tokens: torch.Tensor,
    sampling: SamplingMetadata,
    drafts: SpecDecodeMetadata,
) -> Any:
    if sampling.max_num_logprobs is None:
        return None
    return rejection_sampler._get_logprobs_tensors(
        sampling.max_num_logprobs,
        drafts,
        scored,
        scored[drafts.target_logits_indices],
        scored[drafts.bonus_logits_indices],
        tokens,
    )
