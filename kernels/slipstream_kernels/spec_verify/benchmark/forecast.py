"""What is predicted, as text: bytes, floors, memory, and what the early exit should save. Nothing here was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slipstream_kernels.spec_verify.benchmark.cases import (
    ACCEPTANCES,
    DRAFT_TOKENS,
    REQUESTS,
    VOCABULARIES,
    Case,
    Kind,
    grid,
)
from slipstream_kernels.spec_verify.benchmark.measure import workspace_of
from slipstream_kernels.spec_verify.benchmark.predictions import STATED_BANDWIDTH, Prediction, predict
from slipstream_kernels.spec_verify.benchmark.simulation import Layout, Machine, accepted_counts, simulate
from slipstream_kernels.spec_verify.kernel_config import LaunchConfig, default_config

_MEGABYTE = 1e6
_REGISTERS, _MOST_REGISTERS, _WARPS, _LANES = 65_536, 128, 64, 32
"""A multiprocessor's registers, what a thread takes where nothing limits it, resident warps, threads of a warp."""


def text(*, simulated: bool = True) -> str:
    """All tables. The simulation takes some seconds."""
    parts = ["\n".join(_floors()), "\n".join(_memory())]
    if simulated:
        parts.append("\n".join(_early_exit()))
    return "\n\n".join(parts)


def _floors() -> Iterator[str]:
    yield f"Predicted floors at {STATED_BANDWIDTH / 1e12:g} TB/s: µs (MB of logits), bf16, drafts of equal length."
    yield "Probabilistic drafts: one row of the draft for each of the target's rows that has a drafted token."
    yield ""
    alphas = [f"α = {acceptance}" for acceptance in ACCEPTANCES]
    yield f"| V | B | γ | all rows | {' | '.join(alphas)} | probabilistic, {alphas[1]} |"
    yield "|---" * (5 + len(alphas)) + "|"
    for case in grid(acceptances=(ACCEPTANCES[0],)):
        cells = [predict(_with(case, acceptance)) for acceptance in ACCEPTANCES]
        both = predict(_with(case, ACCEPTANCES[1], Kind.PROBABILISTIC))
        yield (
            f"| {case.vocabulary:,} | {case.requests} | {case.draft_tokens} "
            f"| {_cell(cells[0].all_rows_us, cells[0].all_rows_bytes)} "
            f"| {' | '.join(map(_needed, cells))} | {_needed(both)} |"
        )


def _memory() -> Iterator[str]:
    yield "Predicted memory beside inputs, KB: the default configuration's workspace. Outputs: 12 γ + 28 B a request"
    yield ""
    yield "| V | B | γ | one-hot | probabilistic | filters | block rule |"
    yield "|---|---|---|---|---|---|---|"
    for vocabulary in VOCABULARIES:
        for requests in (1, 128, 256):
            for gamma in DRAFT_TOKENS:
                case = Case(requests=requests, draft_tokens=gamma, vocabulary=vocabulary, acceptance=0.7)
                kinds = (Kind.ONE_HOT, Kind.PROBABILISTIC, Kind.FILTERED, Kind.BLOCK)
                sizes = [workspace_of(_with(case, 0.7, kind), "cpu").nbytes / 1e3 for kind in kinds]
                yield f"| {vocabulary:,} | {requests} | {gamma} | {' | '.join(f'{size:.0f}' for size in sizes)} |"


def _early_exit() -> Iterator[str]:
    machine = Machine()
    yield (
        "Predicted by simulation (α = 0.7, γ = 4, default configuration, "
        f"{machine.bandwidth_bytes_per_us / 1e6:g} TB/s, latencies guessed)"
    )
    yield ""
    yield "| V | B | rows needed | rows read | lazy µs | all rows µs | lazy ÷ all |"
    yield "|---|---|---|---|---|---|---|"
    for vocabulary in VOCABULARIES:
        for requests in REQUESTS:
            config = default_config(requests, vocabulary)
            layout = Layout(splits=config.splits, block=config.block, per_multiprocessor=_resident(config))
            accepted = accepted_counts(requests, 4, 0.7, seed=1)
            lazy = simulate(accepted, 4, vocabulary, layout, machine)
            every = simulate(accepted, 4, vocabulary, layout, machine, lazy=False)
            needed, read = lazy.rows_needed / lazy.rows, lazy.rows_read / lazy.rows
            yield (
                f"| {vocabulary:,} | {requests} | {needed:.2f} | {read:.2f} "
                f"| {lazy.time_us:.1f} | {every.time_us:.1f} | {lazy.time_us / every.time_us:.2f} |"
            )


def _resident(config: LaunchConfig) -> int:
    """How many programs a multiprocessor holds at a time."""
    per_program = (config.registers or _MOST_REGISTERS) * _LANES * config.warps
    return max(1, min(_REGISTERS // per_program, _WARPS // config.warps))


def _with(case: Case, acceptance: float, kind: Kind = Kind.ONE_HOT) -> Case:
    return replace(case, acceptance=acceptance, kind=kind)


def _needed(prediction: Prediction) -> str:
    return _cell(prediction.needed_us, prediction.needed_bytes)


def _cell(time_us: float, count: float) -> str:
    return f"{time_us:.2f} ({count / _MEGABYTE:.1f})"
