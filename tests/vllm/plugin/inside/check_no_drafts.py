"""The layout that a step without drafts uses again, beside the one that vLLM computes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scripted import configuration
from slipstream_vllm.no_drafts import install_in_worker, verifies_nothing
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

TARGET = os.environ["SLIPSTREAM_TARGET"]
TOKENS = 256
calculate: Callable[..., Any] = GPUModelRunner._calc_spec_decode_metadata


def runner_for(*, asynchronous: bool) -> Any:
    """vLLM's own class, with what its layout reads and no model."""
    install_in_worker()
    made = GPUModelRunner.__new__(GPUModelRunner)
    made.vllm_config = configuration(TARGET, asynchronous=asynchronous)
    made.use_async_scheduling = asynchronous
    made.device = torch.device("cpu")
    made.arange_np = np.arange(TOKENS, dtype=np.int64)
    made._arange_scratch = np.empty(TOKENS, dtype=np.int64)
    made.input_ids = SimpleNamespace(gpu=torch.arange(TOKENS, dtype=torch.int32))
    return made


@pytest.fixture(scope="module")
def runner() -> Any:
    return runner_for(asynchronous=False)


def layouts(runner: Any, drafts: list[int], scheduled: list[int]) -> tuple[Any, Any]:
    """The plugin's and vLLM's for requests with so many drafts and scheduled tokens."""
    arguments = np.array(drafts, dtype=np.int32), np.cumsum(scheduled, dtype=np.int32)
    return runner._calc_spec_decode_metadata(*arguments), calculate(runner, *arguments)


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.max_spec_len == theirs.max_spec_len
    for field in dataclasses.fields(theirs):
        left, right = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(right, torch.Tensor):
            assert left.dtype == right.dtype, field.name
            assert left.tolist() == right.tolist(), field.name
        else:
            assert left == right, field.name


def test_layout_without_drafts_is_that_of_vllm(runner: Any) -> None:
    draw = np.random.default_rng(5)
    for requests in (1, 3, 8, 3, 1, 8):  # each number of requests twice: computed, then used again
        scheduled = draw.integers(1, 20, requests).tolist()
        assert_same(*layouts(runner, [0] * requests, scheduled))


def test_layout_with_drafts_is_computed_anew(runner: Any) -> None:
    assert_same(*layouts(runner, [0, 0, 0], [1, 7, 1]))
    assert_same(*layouts(runner, [2, 0, 4], [3, 7, 5]))
    assert_same(*layouts(runner, [0, 4, 0], [1, 5, 1]))
    assert_same(*layouts(runner, [0, 0, 0], [9, 1, 1]))


def test_only_a_synchronous_step_without_drafts_is_one_without_speculation(runner: Any) -> None:
    assert verifies_nothing(runner, [0, 0])
    assert not verifies_nothing(runner, [0, 1])
    assert not verifies_nothing(runner_for(asynchronous=True), [0, 0])
