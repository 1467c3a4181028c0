"""The benchmark of the verification kernel: one command, one table.

    python -m slipstream_kernels.spec_verify.bench [--quick] [--tune] [--out results.json] [--budget 540]

On a GPU it holds the kernel against the reference, the float64 rule and the target's own distribution first. If any of
that fails it says so, prints no time at all and exits with 1. Then it measures the copy bandwidth, the kernel and what
it is compared with, and prints the figures with their goals.

Without a GPU it says so, prints what is predicted and measures nothing. With `--device cpu` under TRITON_INTERPRET=1
the checks run in the interpreter, at small sizes: they prove the algorithm, never a speed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from slipstream_kernels.backend import use_kernel
from slipstream_kernels.errors import KernelUnavailable
from slipstream_kernels.spec_verify.benchmark import checks, forecast, measure, tune
from slipstream_kernels.spec_verify.benchmark.records import Run
from slipstream_kernels.spec_verify.benchmark.report import report
from slipstream_kernels.spec_verify.benchmark.timing import GpuTimer, Timer


def main(arguments: Sequence[str] | None = None, verifier: checks.Verifier = checks.kernel) -> int:
    """Run it; the exit status. `verifier` is what the checks are held against."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU here")
    torch.set_num_threads(1)
    deadline = measure.Deadline(budget_s=options.budget)
    device = options.device or ("cuda" if torch.cuda.is_available() else None)
    if device is None:
        print("no GPU here: nothing was measured. What is predicted for one:\n")
        print(forecast.text())
        return 0
    sizes = checks.ON_A_GPU if device == "cuda" else checks.INTERPRETED
    try:
        use_kernel("kernel", torch.device(device))
        passed = checks.run_checks(verifier, sizes, device)
    except (checks.CheckFailed, KernelUnavailable, ValueError) as error:
        print(f"CHECKS FAILED, no speed is told: {error}", file=sys.stderr)
        return 1
    print(f"checks on {device!r} passed:\n" + "\n".join(f"  {line}" for line in passed.findings) + "\n")
    if device != "cuda":
        print("no GPU here: nothing was measured. What is predicted for one:\n")
        print(forecast.text())
        return 0
    return _measure(options, passed, GpuTimer(), device, deadline)


def _measure(
    options: argparse.Namespace, passed: checks.Passed, timer: Timer, device: str, deadline: measure.Deadline
) -> int:
    plan = measure.QUICK if options.quick else measure.FULL
    if options.tune:
        print(tune.table(tune.tune(plan, passed, timer, device, deadline)))
        return 0

    def save(run: Run) -> None:
        if options.out:
            run.write(options.out, passed.findings)

    try:
        run = measure.measure(plan, passed, timer, device, torch.cuda.get_device_name(), deadline, save)
    except checks.CheckFailed as error:
        if options.out:
            options.out.unlink(missing_ok=True)
        print(f"CHECKS FAILED, no speed is told: {error}", file=sys.stderr)
        return 1
    save(run)
    print(report(run, passed))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU if there is one")
    parser.add_argument("--quick", action="store_true", help="two batch sizes, one vocabulary")
    parser.add_argument("--tune", action="store_true", help="time launch configurations instead")
    parser.add_argument(
        "--budget", type=float, default=540.0, help="seconds for measuring; the rest is named as skipped"
    )
    parser.add_argument("--out", type=Path, help="where to write everything measured, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
