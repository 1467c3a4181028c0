"""Removes the verification overhead from steps without drafts (synchronous scheduling, V1 model runner).

vLLM 0.32 prepares every step of a speculating server for verification. Without drafts, the prepared metadata depend
only on the number of requests, except for the rows of the logits, so they are cached per number of requests.
Asynchronous scheduling expects the results of each step in the shape of a verification and is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from slipstream_vllm import compatibility
from slipstream_vllm.hooks import wrap

Counts = npt.NDArray[np.int32]


def install_in_worker() -> None:
    """Make the V1 model runner reuse the metadata of steps without drafts."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    wrap(GPUModelRunner, "_calc_spec_decode_metadata", _known_without_drafts)


def verifies_nothing(runner: Any, num_draft_tokens: Sequence[int]) -> bool:
    """Whether a step with these draft counts, one per request, can run as a step without speculation."""
    return not runner.use_async_scheduling and not any(num_draft_tokens)


def _known_without_drafts(calculate: Callable[..., Any]) -> Callable[..., Any]:
    def calculate_or_know(self: Any, num_draft_tokens: Counts, cu_num_scheduled_tokens: Counts) -> Any:
        if not (compatibility.serves(self.vllm_config) and verifies_nothing(self, num_draft_tokens.tolist())):
            return calculate(self, num_draft_tokens, cu_num_scheduled_tokens)
        known: dict[int, SpecDecodeMetadata] | None = getattr(self, "_slipstream_no_drafts", None)
        if known is None:
            known = self._slipstream_no_drafts = {}
        requests = len(num_draft_tokens)
        if requests not in known:
            known[requests] = calculate(self, num_draft_tokens, cu_num_scheduled_tokens)
        last_rows = torch.from_numpy(cu_num_scheduled_tokens - 1).to(self.device)
        return replace(known[requests], logits_indices=last_rows)

    return calculate_or_know
