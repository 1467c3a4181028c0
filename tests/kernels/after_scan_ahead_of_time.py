"""Compile the kernels that follow the scan, as `ahead_of_time` does: for a process of its own.

Prints registers and spills of each, JSON.
"""

from __future__ import annotations

import json

import torch
from slipstream_kernels import LogitAdjustments
from slipstream_kernels.spec_verify import launch_after_scan
from slipstream_kernels.spec_verify.kernel_arguments import Launch

from tests.kernels.ahead_of_time import compile_ahead, prepare_step

VOCABULARY = 151_936


def steps() -> dict[str, Launch]:
    """Steps of the size that a GPU gets: "plain" ones read logits as they are."""
    start = torch.zeros(64, dtype=torch.int64)
    penalised = LogitAdjustments.of(VOCABULARY, repetition=[1.1] * 64)
    half = torch.bfloat16
    return {
        "plain": prepare_step(half, 64, row_start=start, filters=True, sampled=True),
        "plain, one-hot": prepare_step(half, 64, row_start=start, filters=True),
        "plain, block rule": prepare_step(
            half, 64, row_start=start, filters=True, sampled=True, block_verification=True
        ),
        "float32": prepare_step(torch.float32, 64, row_start=start, filters=True, sampled=True),
        "penalties": prepare_step(half, 64, row_start=start, filters=True, sampled=True, adjustments=penalised),
    }


def main() -> None:
    """The figures of all kernels of all steps for sm_90."""
    figures = {}
    for name, launch in steps().items():
        calls = [launch_after_scan.threshold_call(launch), launch_after_scan.residual_call(launch)]
        calls += [launch_after_scan.block_call(launch)] if launch.block_rule else []
        for call in calls:
            made = compile_ahead(call.kernel, call.arguments, call.constants, capability=90, warps=call.warps)
            figures[f"{name}: {call.kernel.fn.__name__}"] = {
                "registers": made.registers,
                "stack": made.stack,
                "spills": made.sass.count("STL"),
                "threads": 32 * call.warps,
                "wide_loads": made.sass.count("LDG.E.128"),
                "barriers": made.sass.count("BAR.SYNC"),
            }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
