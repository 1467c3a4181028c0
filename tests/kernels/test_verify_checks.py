"""Bad input to `verify`: a ValueError that names the argument and both values, before anything runs; and machines
without what the kernel needs."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from slipstream_kernels import LogitAdjustments, SamplingBatch, verify
from slipstream_kernels.backend import use_kernel

NAN = math.nan
VOCABULARY = 40


def int64(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def int32(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def sampling_with(**columns: object) -> SamplingBatch:
    """Of two requests; `columns` are put in unchecked."""
    return replace(SamplingBatch.of([1.0] * 2, [0.9] * 2, [5] * 2, [0] * 2), **columns)


def adjusting(**changes: object) -> LogitAdjustments:
    fitting = LogitAdjustments.of(
        VOCABULARY,
        bias=[{3: 1.0, 8: 2.0}, {1: -1.0}],
        prompts=[[1, 2], []],
        outputs=[[2, 9], [5]],
        repetition=[1.1, 1.0],
        allowed=[None] * 5,
    )
    return replace(fitting, **changes)


def fitting_arguments() -> dict[str, object]:
    """Two requests with 1 and 2 drafted tokens."""
    return {
        "target_logits": torch.zeros(5, VOCABULARY),
        "draft_token_ids": int64([1, 10**9], [2, 3]),
        "draft_lengths": int64(1, 2),
        "sampling": sampling_with(),
        "positions": int64(7, 0),
        "row_start": int64(0, 2),
        "adjustments": adjusting(),
    }


def overlapping(*shape: int) -> torch.Tensor:
    return torch.zeros(shape[-1]).expand(*shape)


FORM = [
    # shapes
    ("target_logits", torch.zeros(5), "target_logits has shape [5]: must be [N, V]"),
    ("target_logits", torch.zeros(5, 0), "target_logits has shape [5, 0]"),
    ("draft_token_ids", int64(1, 2), "draft_token_ids has shape [2]: must be [2, K]"),
    ("draft_token_ids", torch.zeros(3, 2, dtype=torch.int64), "draft_token_ids has shape [3, 2]: must be [2, K]"),
    ("draft_lengths", int64(1), "draft_lengths has shape [1]: must be [2]"),
    ("positions", int64([7], [0]), "positions has shape [2, 1]: must be [2]"),
    ("row_start", int64(0, 2, 5), "row_start has shape [3]: must be [2]"),
    # types
    (
        "target_logits",
        torch.zeros(5, VOCABULARY, dtype=torch.float64),
        "target_logits is torch.float64: must be one of",
    ),
    ("target_logits", torch.zeros(5, VOCABULARY, dtype=torch.int32), "target_logits is torch.int32"),
    ("draft_token_ids", int32([1, 2], [2, 3]), "draft_token_ids is torch.int32: must be torch.int64"),
    ("draft_lengths", int32(1, 2), "draft_lengths is torch.int32: must be torch.int64"),
    ("positions", torch.zeros(2), "positions is torch.float32: must be torch.int64"),
    ("row_start", int32(0, 2), "row_start is torch.int32: must be torch.int64"),
    # devices
    ("draft_token_ids", torch.zeros(2, 2, dtype=torch.int64, device="meta"), "draft_token_ids is on meta: "),
    ("draft_lengths", torch.zeros(2, dtype=torch.int64, device="meta"), "draft_lengths is on meta: "),
    ("positions", torch.zeros(2, dtype=torch.int64, device="meta"), "positions is on meta: target_logits is on cpu"),
    ("row_start", torch.zeros(2, dtype=torch.int64, device="meta"), "row_start is on meta: target_logits is on cpu"),
    ("sampling", SamplingBatch.of([1.0] * 2, [1.0] * 2, [0] * 2, [0] * 2, "meta"), "sampling.temperature is on meta: "),
    # sampling
    ("sampling", sampling_with(temperature=torch.zeros(2, 1)), "sampling.temperature has shape [2, 1]: must be [B]"),
    ("sampling", sampling_with(temperature=torch.tensor(1.0)), "sampling.temperature has shape []: must be [B]"),
    ("sampling", sampling_with(temperature=torch.zeros(2).double()), "sampling.temperature is torch.float64: must be"),
    ("sampling", sampling_with(top_p=torch.ones(1)), "sampling.top_p has shape [1]: must be [2]"),
    ("sampling", sampling_with(top_p=torch.ones(2, device="meta")), "sampling.top_p is on meta: sampling.temperature"),
    ("sampling", sampling_with(top_k=torch.ones(2)), "sampling.top_k is torch.float32: must be torch.int64"),
    ("sampling", sampling_with(top_k=int32(1, 1)), "sampling.top_k is torch.int32: must be torch.int64"),
    ("sampling", sampling_with(min_p=torch.ones(2).half()), "sampling.min_p is torch.float16: must be torch.float32"),
    ("sampling", sampling_with(seed=int64(1, 2, 3)), "sampling.seed has shape [3]: must be [2]"),
    ("sampling", sampling_with(seed=[1, 2]), "sampling.seed is list: must be a torch.Tensor"),
    ("sampling", SamplingBatch.of([1.0], [1.0], [0], [0]), "draft_token_ids has shape [2, 2]: must be [1, K]"),
    # what is no tensor
    ("target_logits", [[0.0]], "target_logits is list: must be a torch.Tensor"),
    ("target_logits", None, "target_logits is NoneType: must be a torch.Tensor"),
    ("target_logits", np.zeros((5, 40), np.float32), "target_logits is ndarray: must be a torch.Tensor"),
    ("draft_token_ids", [[1, 2], [2, 3]], "draft_token_ids is list: must be a torch.Tensor"),
    ("draft_lengths", None, "draft_lengths is NoneType: must be a torch.Tensor"),
    ("positions", 5, "positions is int: must be a torch.Tensor"),
    ("row_start", [0, 2], "row_start is list: must be a torch.Tensor"),
    ("sampling", None, "sampling is NoneType: must be a SamplingBatch"),
    ("adjustments", {}, "adjustments is dict: must be a LogitAdjustments"),
    ("adjustments", adjusting(bias_ids=[1]), "adjustments.bias_ids is list: must be a torch.Tensor"),
    ("adjustments", adjusting(bitmask=[[0]]), "adjustments.bitmask is list: must be a torch.Tensor"),
    # views
    ("target_logits", torch.zeros(5, 80)[:, ::2], "target_logits has stride 2 within a row: must be 1"),
    ("target_logits", torch.zeros(VOCABULARY, 5).T, "target_logits has stride 5 within a row: must be 1"),
    ("target_logits", overlapping(5, VOCABULARY), "target_logits has stride 0: its rows overlap, at least 40"),
    ("target_logits", torch.zeros(60).as_strided((5, 40), (5, 1)), "target_logits has stride 5: its rows overlap"),
    ("draft_token_ids", torch.zeros(2, 4, dtype=torch.int64)[:, ::2], "draft_token_ids has stride 2 within a row"),
    ("positions", torch.zeros(4, dtype=torch.int64)[::2], "positions has stride 2: must be 1"),
    ("draft_lengths", torch.zeros(1, dtype=torch.int64).expand(2), "draft_lengths has stride 0: must be 1"),
    # adjustments
    ("adjustments", adjusting(bias_values=None), "adjustments.bias_values is None: must be a tensor, as"),
    ("adjustments", adjusting(seen_ids=None), "adjustments.seen_ids is None: must be a tensor, as"),
    ("adjustments", adjusting(bias_offsets=int32(0, 3)), "adjustments.bias_offsets has shape [2]: must be [3]"),
    ("adjustments", adjusting(bias_values=torch.zeros(2)), "adjustments.bias_values has shape [2]: must be [3]"),
    ("adjustments", adjusting(bias_ids=int64(3, 8, 1)), "adjustments.bias_ids is torch.int64: must be torch.int32"),
    ("adjustments", adjusting(presence=torch.zeros(3)), "adjustments.presence has shape [3]: must be [2]"),
    ("adjustments", adjusting(frequency=torch.zeros(2).half()), "adjustments.frequency is torch.float16"),
    ("adjustments", adjusting(repetition=torch.ones(2, device="meta")), "adjustments.repetition is on meta: "),
    ("adjustments", adjusting(bitmask=torch.zeros(5, 3, dtype=torch.int32)), "adjustments.bitmask has shape [5, 3]: "),
    ("adjustments", adjusting(bitmask=torch.zeros(2, 2, dtype=torch.int32)), "must be [5, 2] for target_logits"),
    ("adjustments", adjusting(bitmask=torch.zeros(5, 2, dtype=torch.int64)), "adjustments.bitmask is torch.int64"),
    (
        "adjustments",
        adjusting(bitmask=torch.zeros(5, 4, dtype=torch.int32)[:, ::2]),
        "adjustments.bitmask has stride 2",
    ),
]


@pytest.mark.parametrize(("name", "value", "message"), FORM)
def test_what_does_not_fit_is_named(verify_backend, name, value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        verify_backend(**{**fitting_arguments(), name: value})


def test_values_at_their_limits_are_taken():
    arguments = fitting_arguments()
    assert verify(**arguments).lengths.shape == (2,)
    limits = {
        "draft_token_ids": int64([39, -7], [0, 39]),
        "sampling": SamplingBatch.of([0.0, 1e6], [0.0, 1.0], [40, 0], [0, 0], min_p=[0.0, 1.0]),
        "positions": int64(2**63 - 8, 0),
        "adjustments": adjusting(bias_offsets=int32(0, 0, 3), bias_ids=int32(0, 1, 39)),
    }
    assert verify(**(arguments | limits)).lengths.shape == (2,)
    assert verify(**(arguments | {"row_start": None})).lengths.shape == (2,)


def test_rows_behind_the_last_request_are_left_alone():
    arguments = fitting_arguments() | {"row_start": None, "adjustments": None}
    logits = torch.cat((torch.zeros(5, VOCABULARY), torch.full((1, VOCABULARY), NAN)))
    with_more = verify(**(arguments | {"target_logits": logits}))
    for got, expected in zip(with_more[:3], verify(**arguments)[:3], strict=True):
        assert torch.equal(got, expected)


def test_flags_may_say_more_than_a_selection_of_rows_has():
    whole = SamplingBatch.of([1.0, 0.0, 1.0], [1.0, 0.5, 0.5], [0, 5, 0], [0] * 3, min_p=[0.0, 0.1, 0.0])
    for rows in ([0, 0], [1, 1], [0, 1]):
        arguments = fitting_arguments() | {"sampling": whole.rows(torch.tensor(rows))}
        assert verify(**arguments).lengths.shape == (2,)


def test_one_requests_parameters_serve_all_without_a_copy():
    for temperature in (0.0, 1.0):
        one = SamplingBatch.of([temperature], [0.9], [5], [3], min_p=[0.01])
        shared, copied = (verify(**(fitting_arguments() | {"sampling": s})) for s in (one.expand(2), copy_of(one, 2)))
        assert torch.equal(shared.token_ids, copied.token_ids)


def copy_of(one: SamplingBatch, count: int) -> SamplingBatch:
    return one.rows(torch.zeros(count, dtype=torch.int64))


@pytest.mark.parametrize("changes", [{}, {"sampling": SamplingBatch.of([0.0] * 2, [1.0] * 2, [0] * 2, [0] * 2)}])
def test_results_carry_no_gradient(changes):
    arguments = fitting_arguments() | changes
    arguments["target_logits"].requires_grad_()
    assert not any(part.requires_grad for part in verify(**arguments))


def test_backends_have_names():
    with pytest.raises(ValueError, match="backend = 'cuda': must be 'auto', 'reference' or 'kernel'"):
        verify(**fitting_arguments(), backend="cuda")


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # as if it were not installed
import torch
import slipstream_kernels as kernels
from slipstream_kernels.backend import use_kernel

one, greedy = torch.tensor([0]), kernels.SamplingBatch.of([0.0], [1.0], [0], [0])
arguments = (torch.tensor([[1.0, 2.0]]), torch.zeros(1, 0, dtype=torch.int64), one, greedy, one)
print(kernels.verify(*arguments).token_ids.tolist(), use_kernel("auto", torch.device("cuda")))
try:
    kernels.verify(*arguments, backend="kernel")
except kernels.KernelUnavailable as error:
    print(error)
"""


def test_without_triton_everything_runs_but_the_kernel_which_says_what_is_missing():
    first, second = run(WITHOUT_TRITON).splitlines()
    assert first == "[[1]] False"
    assert second.startswith("the kernel needs the package 'triton' (pip install")


WITHOUT_GPU = """
import torch
import slipstream_kernels as kernels
one, greedy = torch.tensor([0]), kernels.SamplingBatch.of([0.0], [1.0], [0], [0])
arguments = (torch.tensor([[1.0, 2.0]]), torch.zeros(1, 0, dtype=torch.int64), one, greedy, one)
try:
    kernels.verify(*arguments, backend="kernel")
except kernels.KernelUnavailable as error:
    print(error)
"""


def test_the_kernel_asks_for_a_gpu_outside_the_interpreter():
    assert "the kernel needs a GPU, and the tensors are on 'cpu'" in run(WITHOUT_GPU)


def test_importing_the_package_imports_no_triton():
    assert run("import sys, slipstream_kernels; print('triton' in sys.modules)").strip() == "False"


def test_auto_is_the_reference_off_the_gpu():
    assert not use_kernel("auto", torch.device("cpu"))
    assert not use_kernel("reference", torch.device("cuda"))
