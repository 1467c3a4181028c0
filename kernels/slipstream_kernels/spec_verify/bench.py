"""Benchmark of the verification kernel: correctness checks, then one table of GPU times.

    python -m slipstream_kernels.spec_verify.bench [--quick] [--out results.json]

The checks compare the kernel with the PyTorch implementation, with the rule computed in float64 and with the target's
own distribution. If a check fails, the command prints no time and exits with status 1. Otherwise it times the kernel,
eager PyTorch and `torch.compile` on the same inputs.

Without a GPU nothing is timed. `--device cpu` with TRITON_INTERPRET=1 runs the checks in Triton's interpreter at small
sizes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path

import torch

from slipstream_kernels.backend import use_kernel
from slipstream_kernels.errors import KernelUnavailable
from slipstream_kernels.gpu_timing import GpuTimer
from slipstream_kernels.spec_verify.benchmark import checks
from slipstream_kernels.spec_verify.benchmark.cases import grid
from slipstream_kernels.spec_verify.benchmark.measure import Run, measure

_NO_GPU = "No GPU was found, so nothing was timed."


def main(arguments: Sequence[str] | None = None, verifier: checks.Verifier = checks.kernel) -> int:
    """Run the command and return its exit status. `verifier` is the implementation that the checks examine."""
    parser = _parser()
    options = parser.parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    if options.device == "cuda" and not has_gpu:
        parser.error("--device cuda: PyTorch found no GPU")
    device = options.device or ("cuda" if has_gpu else None)
    if device is None:
        print(f"{_NO_GPU} To run the checks in Triton's interpreter: TRITON_INTERPRET=1 … --device cpu")
        return 0
    torch.set_num_threads(1)
    sizes = checks.ON_A_GPU if device == "cuda" else checks.INTERPRETED
    try:
        use_kernel("kernel", torch.device(device))
        passed = checks.run_checks(verifier, sizes, device)
        print(f"Checks on {device!r} passed:\n" + "\n".join(f"  {line}" for line in passed.findings) + "\n")
        if device != "cuda":
            print(_NO_GPU)
            return 0
        run = measure(grid(quick=options.quick), passed, GpuTimer(), device, torch.cuda.get_device_name())
    except (checks.CheckFailed, KernelUnavailable, ValueError) as error:
        print(f"CHECKS FAILED, no times are reported: {error}", file=sys.stderr)
        return 1
    if options.out:
        write(run, passed, options.out)
    print(report(run))
    return 0


def report(run: Run) -> str:
    """The run as Markdown: one line per case, then the device."""
    lines = [
        "| kind | V | B | γ | α | accepted | kernel µs (quartiles) | of copy | reading all rows µs | eager µs "
        "| torch.compile µs |",
        "|---" * 11 + "|",
    ]
    for row in run.rows:
        case, kernel = row.case, row.kernel
        of_copy = row.needed_bytes / (kernel.median_us * 1e-6) / run.copy_bandwidth
        others = [
            f"{other.median_us:.1f} ({other.median_us / kernel.median_us:.1f}×)" if other else "-"
            for other in (row.all_rows, row.eager, row.compiled)
        ]
        lines.append(
            f"| {case.kind.value} | {case.vocabulary:,} | {case.requests} | {case.draft_tokens} | {case.acceptance} "
            f"| {row.accepted:.2f} | {kernel} | {of_copy:.0%} | {' | '.join(others)} |"
        )
    lines += ["", f"{run.device}, {run.versions}, copy bandwidth {run.copy_bandwidth / 1e12:.2f} TB/s (read + written)"]
    lines += [f"not measured: {reason}" for reason in run.skipped]
    return "\n".join(lines)


def write(run: Run, passed: checks.Passed, path: Path) -> None:
    """Write the run and the findings of its checks as JSON."""

    def plain(value: object) -> object:
        if isinstance(value, Enum):
            return value.value
        raise TypeError(f"cannot write {value!r} as JSON")

    document = {"checks": passed.findings, **asdict(run)}
    path.write_text(json.dumps(document, indent=1, default=plain, ensure_ascii=False) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), help="device of the checks (default: the GPU, if any)")
    parser.add_argument("--quick", action="store_true", help="time two batch sizes and one vocabulary only")
    parser.add_argument("--out", type=Path, help="also write the results to this file, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
