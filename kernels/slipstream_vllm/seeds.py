"""Keeps seeded requests with prompts of several steps from crashing the server on CPUs.

A step that computes part of a prompt samples a token and discards it. vLLM then rewinds the request's generator by its
offset (`GPUModelRunner._bookkeeping_sync`), which CPU generators do not support, and the whole server ends, with or
without speculation. Here such a row is sampled without its generator, so there is nothing to rewind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from vllm.platforms import current_platform

from slipstream_vllm.hooks import wrap


def install_in_worker() -> None:
    """Restore removed generators after each step."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if current_platform.is_cpu():
        wrap(GPUModelRunner, "_bookkeeping_sync", _restoring)


def set_aside(runner: Any) -> None:
    """Before sampling: remove the generators of rows whose sample is discarded from the batch, for this step."""
    generators = runner.input_batch.generators
    if current_platform.is_cpu() and generators:
        discarded = np.nonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs])[0].tolist()
        runner._slipstream_set_aside = {row: generators.pop(row) for row in discarded if row in generators}


def _restoring(bookkeeping: Callable[..., Any]) -> Callable[..., Any]:
    def bookkeeping_then_restore(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = bookkeeping(self, *args, **kwargs)
        self.input_batch.generators.update(self.__dict__.pop("_slipstream_set_aside", {}))
        return result

    return bookkeeping_then_restore
