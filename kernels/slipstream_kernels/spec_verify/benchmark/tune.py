"""Which launch configuration is the fastest per batch size and vocabulary: measured, for `kernel_config`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from slipstream_kernels.spec_verify.benchmark.cases import Case, grid
from slipstream_kernels.spec_verify.benchmark.checks import Passed
from slipstream_kernels.spec_verify.benchmark.measure import Deadline, Plan, input_sets, kernel_call
from slipstream_kernels.spec_verify.benchmark.timing import Time, Timer
from slipstream_kernels.spec_verify.kernel_config import LaunchConfig
from slipstream_kernels.spec_verify.workspace import Needs, Workspace

_BLOCKS = (2048, 4096, 8192, 16384)
_TILES_PER_PROGRAM = (1, 2, 3)
_LOGITS_PER_THREAD = (16, 32)
_REGISTERS = (40, 64)
_STAGES = (1, 2)
_LANES = 32
_MOST_WARPS = 16
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """One configuration's time on one case."""

    case: Case
    config: LaunchConfig
    time: Time


def configurations(vocabulary: int) -> Iterator[LaunchConfig]:
    """What is tried: tile sizes, tiles per program, logits per thread, registers, tiles under way."""
    for block, each, per_thread, registers, stages in product(
        _BLOCKS, _TILES_PER_PROGRAM, _LOGITS_PER_THREAD, _REGISTERS, _STAGES
    ):
        warps = block // (_LANES * per_thread)
        if warps <= _MOST_WARPS and stages <= each:
            splits = -(-vocabulary // (block * each))
            yield LaunchConfig(block=block, splits=splits, warps=warps, stages=stages, registers=registers)


def tune(
    plan: Plan,
    passed: Passed,
    timer: Timer,
    device: str,
    deadline: Deadline,
    configurations: Callable[[int], Iterator[LaunchConfig]] = configurations,
) -> list[Tuned]:
    """Time every configuration on every (V, B) of the plan at γ = 4, α = 0.7, until the time is up."""
    tuned: list[Tuned] = []
    for case in grid(plan.requests, plan.vocabularies, (4,), (0.7,)):
        sets = input_sets(case, plan.rotated_bytes, device)
        for config in configurations(case.vocabulary):
            if deadline.passed:
                return tuned
            workspace = _workspace(case, config, device)
            calls = [partial(kernel_call, given, config, workspace) for given in sets]
            calls[0]()
            tuned.append(Tuned(case=case, config=config, time=timer.time(calls)))
    return tuned


def table(tuned: Sequence[Tuned]) -> str:
    """The fastest configurations of each case."""
    lines = ["| V | B | block | splits | warps | stages | registers | µs (quartiles) |", "|---" * 8 + "|"]
    for case in dict.fromkeys(one.case for one in tuned):
        ranked = sorted((one for one in tuned if one.case == case), key=lambda one: one.time.median_us)
        for one in ranked[:_SHOWN]:
            config, time = one.config, one.time
            cut = f"{config.block} | {config.splits} | {config.warps} | {config.stages} | {config.registers}"
            spread = f"{time.median_us:.1f} ({time.low_us:.1f}-{time.high_us:.1f})"
            lines.append(f"| {case.vocabulary:,} | {case.requests} | {cut} | {spread} |")
    return "\n".join(lines)


def _workspace(case: Case, config: LaunchConfig, device: str) -> Workspace:
    """Room for a configuration that need not be the default one."""
    tiles = -(-case.vocabulary // config.block)
    needs = Needs(requests=case.requests, draft_count=case.draft_tokens, tiles=tiles)
    return Workspace.of(needs, torch.device(device))
