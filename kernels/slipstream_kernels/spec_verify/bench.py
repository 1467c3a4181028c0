"""Benchmark of the verification kernel: a comparison with its definition in PyTorch, then the times of both on a GPU.

    python -m slipstream_kernels.spec_verify.bench [--quick]

Both must emit the same tokens. A hundredth of the sampled requests may differ, because rounding decides a race between
nearly equal tokens. If more differ, the command prints no time and exits with status 1. Without a GPU nothing is timed:
`--device cpu` with TRITON_INTERPRET=1 compares small batches in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream_kernels.backend import use_kernel
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.errors import KernelUnavailable
from slipstream_kernels.spec_verify.result import Verification
from slipstream_kernels.spec_verify.verify import verify

DRAFTED, ACCEPTANCE = 4, 0.7
_DIFFERENT = 0.01
_ROTATED_BYTES, _MOST_SETS = 240e6, 256
"""Inputs that a measurement rotates through: four times the L2 cache of an H200, in at most so many sets."""
_COPY_BYTES = 2 << 30
_KINDS = {"greedy": (0.0, 1.0, 0), "sampled": (1.0, 1.0, 0), "top-k 50, top-p 0.95": (1.0, 0.95, 50)}
"""Temperature, top-p and top-k by name."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table: B requests with four drafted tokens each."""

    kind: str
    requests: int
    vocabulary: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of bfloat16 logits."""
        return 2 * self.vocabulary


class Inputs(NamedTuple):
    """Arguments of `verify`."""

    target_logits: Tensor
    draft_token_ids: Tensor
    draft_lengths: Tensor
    sampling: SamplingBatch
    positions: Tensor
    row_start: Tensor


Verifier = Callable[[Inputs], Verification]


def reference(given: Inputs) -> Verification:
    """The PyTorch implementation."""
    return verify(*given[:5], row_start=given.row_start, backend="reference")


def kernel(given: Inputs, *, lazy: bool = True) -> Verification:
    """The kernel; `lazy` False turns its early exit off."""
    from slipstream_kernels.spec_verify.kernel import default_config, verify_kernel  # needs `triton`

    config = replace(default_config(len(given.positions), given.target_logits.size(1)), lazy=lazy)
    return verify_kernel(*given[:5], row_start=given.row_start, config=config)


def main(arguments: Sequence[str] | None = None, verifier: Verifier = kernel) -> int:
    """Run the command and return its exit status. `verifier` is compared with the PyTorch implementation."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="device of the tensors (cuda)")
    parser.add_argument("--quick", action="store_true", help="one batch size and one vocabulary only")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU was found; TRITON_INTERPRET=1 … --device cpu compares small batches and times nothing")
    torch.set_num_threads(1)
    requests, vocabularies = ((1, 8, 64, 128, 256), (128_256, 151_936)) if options.device == "cuda" else ((6,), (1030,))
    if options.quick:
        requests, vocabularies = requests[-1:], vocabularies[:1]
    cases = [Case(kind=k, requests=r, vocabulary=v) for k in _KINDS for v in vocabularies for r in requests]
    try:
        use_kernel("kernel", torch.device(options.device))
        for case in cases:
            compare(verifier, case, options.device)
    except (ValueError, KernelUnavailable) as error:
        print(f"no times are reported: {error}", file=sys.stderr)
        return 1
    print(f"{len(cases)} cases on {options.device!r}: the kernel's tokens are those of the PyTorch implementation")
    if options.device == "cuda":
        _print_times(cases)
    return 0


def compare(verifier: Verifier, case: Case, device: str) -> None:
    """Raise a ValueError if the tokens of `verifier` are not those of the PyTorch implementation."""
    for number in range(2):
        given = inputs(case, number, device)
        found, expected = verifier(given), reference(given)
        same = (found.token_ids == expected.token_ids).all(1) & (found.lengths == expected.lengths)
        different = int((~same).sum())
        if different > (0 if case.kind == "greedy" else _DIFFERENT * case.requests):
            raise ValueError(f"{case}: {different} of {case.requests} requests differ from the PyTorch implementation")


def inputs(case: Case, number: int, device: str) -> Inputs:
    """Inputs number `number` of a case. A drafted token is plain decoding's with probability `ACCEPTANCE`."""
    generator = torch.Generator(device=device).manual_seed(1_000_003 * number + case.requests)
    requests, rows = case.requests, case.requests * (DRAFTED + 1)
    logits = torch.empty(rows, case.vocabulary, dtype=torch.bfloat16, device=device)
    logits.normal_(0.0, 2.0, generator=generator)
    if case.kind == "greedy":
        logits.round_()  # many ties
    temperature, top_p, top_k = _KINDS[case.kind]
    seeds = range(number * requests, (number + 1) * requests)
    sampling = SamplingBatch.of([temperature] * requests, [top_p] * requests, [top_k] * requests, seeds, device)
    positions = 17 * torch.arange(requests, device=device) + number
    owner, step = torch.arange(rows, device=device) // (DRAFTED + 1), torch.arange(rows, device=device) % (DRAFTED + 1)
    nothing = torch.zeros(rows, 0, dtype=torch.int64, device=device)
    plain = verify(
        logits, nothing, torch.zeros_like(owner), sampling.rows(owner), positions[owner] + step, backend="reference"
    )
    drafts = plain.token_ids.view(requests, -1)[:, :-1]
    kept = torch.rand(drafts.shape, generator=generator, device=device) < ACCEPTANCE
    drafts = torch.where(kept, drafts, (drafts + 1) % case.vocabulary)
    lengths = torch.full((requests,), DRAFTED, device=device)
    return Inputs(logits, drafts, lengths, sampling, positions, torch.arange(0, rows, DRAFTED + 1, device=device))


def _print_times(cases: Sequence[Case]) -> None:
    """A table in Markdown: GPU times per call, and the share of a copy's bandwidth for the rows that a call needs."""
    import triton

    source = torch.randint(256, (_COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    bandwidth = 2 * _COPY_BYTES / _seconds([lambda: target.copy_(source)])
    print("| kind | V | B | accepted | kernel µs | of copy | reading all rows µs | PyTorch µs |\n" + "|---" * 8 + "|")
    for case in cases:
        count = max(2, min(_MOST_SETS, int(_ROTATED_BYTES / (case.row_bytes * case.requests * (DRAFTED + 1)))))
        sets = [inputs(case, number, "cuda") for number in range(count)]
        accepted = sum(float(kernel(given).accepted.double().mean()) for given in sets) / count
        runs = (kernel, partial(kernel, lazy=False), reference)
        times = [_seconds([partial(run, given) for given in sets]) for run in runs]
        share = (accepted + 1) * case.requests * case.row_bytes / times[0] / bandwidth
        lazy, whole, eager = (f"{seconds * 1e6:.1f}" for seconds in times)
        head = f"| {case.kind} | {case.vocabulary:,} | {case.requests} | {accepted:.2f}"
        print(f"{head} | {lazy} | {share:.0%} | {whole} | {eager} |", flush=True)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, α = {ACCEPTANCE}, ")
    print(f"γ = {DRAFTED}, copy bandwidth {bandwidth / 1e12:.2f} TB/s (read + written)")


def _seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Median time per call of `calls`, one after the other in a CUDA graph."""
    from triton.testing import do_bench_cudagraph

    def run() -> None:
        for call in calls:
            call()

    run()
    return float(do_bench_cudagraph(run, rep=50, return_mode="median")) * 1e-3 / len(calls)


if __name__ == "__main__":
    sys.exit(main())
