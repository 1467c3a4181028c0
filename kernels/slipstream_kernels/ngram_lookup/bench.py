"""Benchmark of prompt look-up: correctness checks, then one table of GPU times.

    python -m slipstream_kernels.ngram_lookup.bench

The kernel is compared with the PyTorch implementation on every case and on ragged batches. If they differ, the command
prints no time and exits with status 1. Without a GPU nothing is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from slipstream_kernels.backend import Backend
from slipstream_kernels.gpu_timing import GpuTimer, Timer
from slipstream_kernels.ngram_lookup import NgramDrafts, NgramWorkspace, ngram_lookup

MIN_NGRAM, MAX_NGRAM, DRAFTS = 2, 3, 4
VOCABULARY = 128_256
NEAR = 300
"""Distance of a near match from the end of the text, in tokens."""

_TOKEN_BYTES = 4
_ROTATED_BYTES, _MOST_INPUTS, _MOST_EAGER_INPUTS = 200e6, 64, 4

Inputs = tuple[Tensor, Tensor, Tensor]
"""tokens [B, L] int32, lengths [B] and most [B] int64."""

LookUp = Callable[..., NgramDrafts]
"""`ngram_lookup`, or a replacement in tests."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch of full rows, either without a match (the whole text is read) or with one near the end."""

    requests: int
    columns: int
    near: bool

    @property
    def text_bytes(self) -> int:
        """Size of the whole batch."""
        return self.requests * self.columns * _TOKEN_BYTES

    @property
    def read_bytes(self) -> int:
        """Bytes of text that the kernel reads: with a near match, the first tile of each program."""
        from slipstream_kernels.ngram_lookup.kernel import division  # needs `triton`

        tile, splits = division(self.requests, self.columns)
        columns = min(self.columns, tile * splits) if self.near else self.columns
        return self.requests * columns * _TOKEN_BYTES

    def inputs(self, seed: int, device: str) -> Inputs:
        """Random texts. With this vocabulary, matches of three tokens do not occur by chance, and of two hardly."""
        generator = torch.Generator(device).manual_seed(seed)
        shape = (self.requests, self.columns)
        tokens = torch.randint(VOCABULARY, shape, generator=generator, dtype=torch.int32, device=device)
        if self.near:
            tokens[:, -NEAR - MAX_NGRAM : -NEAR] = tokens[:, -MAX_NGRAM:]
        lengths = torch.full((self.requests,), self.columns, device=device)
        return tokens, lengths, torch.full_like(lengths, DRAFTS)


def cases() -> Iterator[Case]:
    for columns in (4_096, 32_768, 131_072):
        for requests in (1, 8, 32, 64, 128, 256):
            for near in (False, True):
                yield Case(requests=requests, columns=columns, near=near)


def main() -> int:
    """Run the command and return its exit status."""
    if not torch.cuda.is_available():
        print("No GPU was found, so nothing was timed.")
        return 0
    print(torch.cuda.get_device_name())
    return measure(GpuTimer(), list(cases()), [_ragged(seed) for seed in range(20)], "cuda")


def measure(
    timer: Timer, table: Sequence[Case], ragged: Sequence[Inputs], device: str, look_up: LookUp = ngram_lookup
) -> int:
    """Check the kernel on every case and on `ragged`, then time both implementations. Returns 1 if they differ."""
    failed = [str(case) for case in table if not _agree(look_up, case.inputs(0, device))]
    failed += [f"ragged batch {index}" for index, inputs in enumerate(ragged) if not _agree(look_up, inputs)]
    if failed:
        print(f"CHECKS FAILED, no times are reported. The kernel differs from the reference: {', '.join(failed)}")
        return 1
    copy = timer.copy_bandwidth()
    print(f"Checks passed. Copy bandwidth {copy / 1e12:.3f} TB/s (read + written).\n")
    print("| B | L | match | kernel µs (quartiles) | of copy | eager PyTorch µs | ratio |")
    print("|---" * 7 + "|")
    for case in table:
        copies = min(_MOST_INPUTS, max(2, int(_ROTATED_BYTES / case.text_bytes) + 1))
        given = [case.inputs(seed, device) for seed in range(copies)]
        workspace = NgramWorkspace.of(case.requests, device)
        kernel = timer.time([_call(look_up, inputs, "kernel", workspace) for inputs in given])
        eager = timer.time([_call(look_up, inputs, "reference") for inputs in given[:_MOST_EAGER_INPUTS]])
        of_copy = case.read_bytes / (kernel.median_us * 1e-6) / copy
        print(
            f"| {case.requests} | {case.columns:,} | {'near' if case.near else 'none'} | {kernel} | {of_copy:.0%} "
            f"| {eager.median_us:.1f} | {eager.median_us / kernel.median_us:.1f}× |"
        )
    return 0


def _call(
    look_up: LookUp, inputs: Inputs, backend: Backend, workspace: NgramWorkspace | None = None
) -> Callable[[], NgramDrafts]:
    settings = {"min_ngram": MIN_NGRAM, "max_ngram": MAX_NGRAM, "drafts": DRAFTS, "check_values": False}
    return partial(look_up, *inputs, **settings, backend=backend, workspace=workspace)


def _agree(look_up: LookUp, inputs: Inputs) -> bool:
    kernel, reference = _call(look_up, inputs, "kernel")(), _call(look_up, inputs, "reference")()
    return torch.equal(kernel.token_ids, reference.token_ids) and torch.equal(kernel.lengths, reference.lengths)


def _ragged(seed: int) -> Inputs:
    """Texts of random lengths over a small vocabulary: matches of every size overlap and cross tile boundaries."""
    generator = torch.Generator("cuda").manual_seed(seed)
    draw = partial(torch.randint, generator=generator, device="cuda")
    tokens = draw(2 + 10 * seed, (37, 20_001), dtype=torch.int32)
    return tokens, draw(20_002, (37,)), draw(DRAFTS + 1, (37,))


if __name__ == "__main__":
    sys.exit(main())
