"""`python -m slipstream_kernels.ngram_lookup.bench`: prompt look-up on a GPU beside PyTorch and the copy bandwidth.

No figure is printed unless every check has passed in the same run. Without a GPU it prints what is predicted for an
H200, and the CPU time of the reference beside an index that grows with the text.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from slipstream_kernels.backend import Backend
from slipstream_kernels.ngram_lookup import NgramDrafts, NgramWorkspace, ngram_lookup
from slipstream_kernels.ngram_lookup.division import division
from slipstream_kernels.spec_verify.benchmark.timing import GpuTimer, Time, Timer

MIN_NGRAM, MAX_NGRAM, DRAFTS = 2, 3, 4
VOCABULARY = 128_256
NEAR = 300
"""How far from the end the match of a text with one lies, in tokens."""

_TOKEN_BYTES = 4
_H200_BYTES_PER_US = 4.8e6
_LAUNCH_US, _SHARE_US, _TILE_US = 3.6, 1.6, 0.9  # of one program: see kernels/NOTES.md
_ROTATED_BYTES, _MOST_INPUTS, _MOST_REFERENCES = 200e6, 64, 4

Inputs = tuple[Tensor, Tensor, Tensor]
"""tokens [B, L] int32, lengths [B] and most [B] int64."""

LookUp = Callable[..., NgramDrafts]
"""`ngram_lookup`, or what a test puts in its place."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch of full rows without a match (all is read), or with one near the end (little has to be)."""

    requests: int
    columns: int
    near: bool

    @property
    def text_bytes(self) -> int:
        """Of the whole batch."""
        return self.requests * self.columns * _TOKEN_BYTES

    @property
    def read_bytes(self) -> int:
        """Of the text; where a match is near the end, the first tile of each program."""
        tile, splits = division(self.requests, self.columns)
        columns = min(self.columns, tile * splits) if self.near else self.columns
        return self.requests * columns * _TOKEN_BYTES

    @property
    def floor_us(self) -> float:
        """The least time at an H200's data-sheet bandwidth."""
        return self.read_bytes / _H200_BYTES_PER_US

    @property
    def predicted_us(self) -> float:
        """What one launch in a graph should take: the latencies of a program, then its tiles or the memory."""
        tile, splits = division(self.requests, self.columns)
        rounds = 1 if self.near else -(-self.columns // (tile * splits))
        fixed = _LAUNCH_US + (_SHARE_US if splits > 1 else 0)
        return fixed + max((rounds - 1) * _TILE_US, self.floor_us / 0.85)

    def inputs(self, seed: int, device: str) -> Inputs:
        """Random texts: over this vocabulary chance makes no match of three tokens, and hardly one of two."""
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
    """Print the table of this machine; 1 if a check fails."""
    if torch.cuda.is_available():
        return measure(GpuTimer(), list(cases()), [_ragged(seed) for seed in range(20)], "cuda")
    torch.set_num_threads(1)
    print("There is no GPU here: nothing of the kernel is measured. Predictions for an H200:")
    _print_predictions()
    _print_cpu_times()
    return 0


def measure(
    timer: Timer, table: Sequence[Case], ragged: Sequence[Inputs], device: str, look_up: LookUp = ngram_lookup
) -> int:
    """Compare `look_up`'s kernel with its reference on every case and on `ragged`, then time both; 1 if they differ."""
    failed = [str(case) for case in table if not _agree(look_up, case.inputs(0, device))]
    failed += [f"ragged batch {index}" for index, inputs in enumerate(ragged) if not _agree(look_up, inputs)]
    if failed:
        print(f"No figures, the kernel differs from the reference: {', '.join(failed)}")
        return 1
    copy = timer.copy_bandwidth()
    print(f"Checks passed. A copy moves {copy / 1e12:.3f} TB/s.")
    print("    B       L match |  floor  predicted  measured (quartiles) us | of copy | PyTorch us  ratio")
    for case in table:
        copies = min(_MOST_INPUTS, max(2, int(_ROTATED_BYTES / case.text_bytes) + 1))
        given = [case.inputs(seed, device) for seed in range(copies)]
        workspace = NgramWorkspace.of(case.requests, device)
        kernel = timer.time([_call(look_up, inputs, "kernel", workspace) for inputs in given])
        eager = timer.time([_call(look_up, inputs, "reference") for inputs in given[:_MOST_REFERENCES]])
        _print_measured(case, kernel, eager, copy)
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
    """Texts of any length over few tokens, where matches of every size overlap and lie across edges."""
    generator = torch.Generator("cuda").manual_seed(seed)
    draw = partial(torch.randint, generator=generator, device="cuda")
    tokens = draw(2 + 10 * seed, (37, 20_001), dtype=torch.int32)
    return tokens, draw(20_002, (37,)), draw(DRAFTS + 1, (37,))


def _print_measured(case: Case, kernel: Time, eager: Time, copy_bytes_per_s: float) -> None:
    of_copy = case.read_bytes / (kernel.median_us * 1e-6) / copy_bytes_per_s
    print(
        f"{case.requests:5} {case.columns:7} {'near' if case.near else 'none'}  | {case.floor_us:6.1f} "
        f"{case.predicted_us:10.1f} {kernel.median_us:9.1f} ({kernel.low_us:.1f}–{kernel.high_us:.1f}) | "
        f"{of_copy:6.1%} | {eager.median_us:9.1f} {eager.median_us / kernel.median_us:6.1f}x"
    )


def _print_predictions() -> None:
    print("    B       L match |       bytes  floor us  predicted us")
    for case in cases():
        match = "near" if case.near else "none"
        line = f"{case.read_bytes:11} {case.floor_us:9.2f} {case.predicted_us:13.1f}"
        print(f"{case.requests:5} {case.columns:7} {match}  | {line}")


def _print_cpu_times() -> None:
    print("CPU time on this machine per step of one request:")
    for columns in (1_024, 16_384):
        case = Case(requests=1, columns=columns, near=True)
        given = case.inputs(0, "cpu")
        text: list[int] = given[0][0].tolist()
        index: dict[tuple[int, ...], int] = {}
        _extend(index, text, 0, columns - 1)
        reference_us = _cpu_us(_call(ngram_lookup, given, "reference"))
        index_us = _cpu_us(lambda text=text, index=index: _by_index(index, text))  # type: ignore[misc]
        print(f"  L = {columns:6}: reference {reference_us:8.1f} us, index of n-grams {index_us:6.1f} us")


def _extend(index: dict[tuple[int, ...], int], text: list[int], start: int, end: int) -> None:
    for after in range(max(start, 1), end):
        for size in range(MIN_NGRAM, min(MAX_NGRAM, after) + 1):
            index[tuple(text[after - size : after])] = after


def _by_index(index: dict[tuple[int, ...], int], text: list[int]) -> list[int]:
    """A step of a host that keeps an index: enter one token's n-grams, look the last ones up."""
    _extend(index, text, len(text) - 1, len(text))
    for size in range(MAX_NGRAM, MIN_NGRAM - 1, -1):
        after = index.get(tuple(text[-size:]))
        if after is not None:
            return text[after : after + DRAFTS]
    return []


def _cpu_us(call: Callable[[], object], repeats: int = 50) -> float:
    call()
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats * 1e6


if __name__ == "__main__":
    sys.exit(main())
