"""Acceptance by equality on vLLM's V2 model runner.

The noise of V2's sampler is a function of the request's seed, the position and the token (`gumbel_sample`). So each row
of a step is drawn by the sampler itself, as without speculation: same filters, penalties, masks and log-probabilities.
A draft token is accepted iff it is the token that the row before it draws. There is no generator to rewind: nothing
waits for the device, and a seeded answer that another server continues has the same tokens.

vLLM's own rule on V2 tests a ratio of probabilities and resamples from a residual, so its tokens depend on the drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from slipstream_vllm import compatibility, settings
from slipstream_vllm.errors import UnsupportedServerError
from slipstream_vllm.hooks import wrap


def install_in_worker() -> None:
    """Make the V2 model runner accept by equality if the setting requires it."""
    wrap(GPUModelRunner, "load_model", _with_equality)


def _with_equality(load_model: Callable[..., Any]) -> Callable[..., Any]:
    # The runner builds its samplers at the end of `load_model`.
    def load_model_with_equality(self: Any, *args: Any, **kwargs: Any) -> None:
        load_model(self, *args, **kwargs)
        config = self.vllm_config
        if config.speculative_config is None or self.rejection_sampler is None or not compatibility.serves(config):
            return  # no speculation, or not the last rank of a pipeline
        if settings.acceptance(config) == "equality":
            for own, known in ((self.sampler, Sampler), (self.rejection_sampler, RejectionSampler)):
                _check_type(own, known)
            self.rejection_sampler = EqualitySampler(self.sampler, self.speculative_config, self.device)
            if settings.is_hybrid(config):
                from slipstream_vllm import hybrid_v2  # needs what only the tested release has

                hybrid_v2.attach(self)

    return load_model_with_equality


def _check_type(sampler: object, known: type) -> None:
    """Raises: `UnsupportedServerError` for a sampler of a model's own. Its draws may depend on more than seed and
    position."""
    if type(sampler) is not known:
        raise UnsupportedServerError(
            f"{settings.ACCEPTANCE_VARIABLE}=equality needs vLLM's own {known.__name__}, and this model has "
            f"{type(sampler).__name__}: set {settings.ACCEPTANCE_VARIABLE}=rejection."
        )


class EqualitySampler(RejectionSampler):
    """vLLM's rejection sampler with another rule."""

    def _verify(
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        cu_num_logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        seq_lens_upper_bound_np: Any,
        verify_draft_sampled: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw the token of each row, and count the rows before the first one that differs from its draft.

        Args:
            logits: (rows, vocabulary); a request's rows are adjacent, one per draft token and one more.
            draft_sampled: (rows,); a row's input token, which the row before it has to draw.
            cu_num_logits: (requests + 1,); each request's first row.
            verify_draft_sampled: `draft_sampled` with -1 for drafts that the grammar excludes.
        Returns:
            the logits with all filters (rows, vocabulary); the drawn tokens (requests, longest draft + 1); the number
            of emitted tokens (requests,), int32.
        """
        drawn, processed = self.sampler.sample(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            return_logprobs=True,  # keeps the filters out of a fused kernel: the caller may score `processed`
        )
        tokens, emitted = emitted_rows(drawn, verify_draft_sampled, cu_num_logits, self.num_speculative_steps)
        return processed, tokens, emitted


def emitted_rows(
    drawn: torch.Tensor, inputs: torch.Tensor, first: torch.Tensor, longest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Arrange the drawn tokens by request. No value is read on the host.

    Args:
        drawn: (rows,); the token of each row.
        inputs: (rows,); the input token of each row: a draft, except in a request's first row.
        first: (requests + 1,); each request's first row, and the number of rows.
        longest: the longest possible draft.
    Returns:
        tokens (requests, longest + 1), arbitrary after the emitted ones; number of emitted tokens (requests,), int32.
    """
    column = torch.arange(longest + 1, device=drawn.device)
    rows = (first[:-1, None] + column).clamp(max=len(drawn) - 1)
    tokens = drawn[rows]
    has_draft = column[1:] < (first[1:] - first[:-1])[:, None]
    equal = (tokens[:, :-1] == inputs[rows[:, 1:]]) & has_draft
    return tokens, 1 + equal.cumprod(dim=1).sum(dim=1, dtype=torch.int32)
