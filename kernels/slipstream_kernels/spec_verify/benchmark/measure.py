"""One run of measurements: the kernel and everything it is compared with, on the same inputs, within a time budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from slipstream_kernels.spec_verify.benchmark import baselines
from slipstream_kernels.spec_verify.benchmark.cases import (
    ACCEPTANCES,
    DRAFT_TOKENS,
    REQUESTS,
    VOCABULARIES,
    Case,
    Inputs,
    Kind,
    grid,
    inputs,
)
from slipstream_kernels.spec_verify.benchmark.checks import CheckFailed, Passed
from slipstream_kernels.spec_verify.benchmark.predictions import needed_bytes, predict
from slipstream_kernels.spec_verify.benchmark.records import Measured, Memory, Run, What
from slipstream_kernels.spec_verify.benchmark.timing import Timer
from slipstream_kernels.spec_verify.kernel_config import LaunchConfig, default_config
from slipstream_kernels.spec_verify.result import Verification
from slipstream_kernels.spec_verify.workspace import Workspace

_CACHE_BYTES = 60e6
_ROTATION = 4
"""The inputs of one graph are so many times the cache."""
_MOST_SETS = 256
_MAIN_DRAFT_TOKENS, _MAIN_ACCEPTANCE = 4, 0.7
"""Where the baselines are measured."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run measures, in this order, until its time is up: the main cases (γ = 4, α = 0.7) with their baselines,
    memory, `torch.compile`, the other kinds, the other cases."""

    vocabularies: tuple[int, ...] = VOCABULARIES
    requests: tuple[int, ...] = REQUESTS
    draft_tokens: tuple[int, ...] = DRAFT_TOKENS
    acceptances: tuple[float, ...] = ACCEPTANCES
    compiled_requests: tuple[int, ...] = (1, 64)
    """Each shape is compiled anew, which takes tens of seconds."""
    memory_requests: int = 128
    kinds_requests: tuple[int, ...] = (1, 64, 128)
    rotated_bytes: float = _ROTATION * _CACHE_BYTES


FULL = Plan()
QUICK = Plan(vocabularies=(128_256,), requests=(1, 64), draft_tokens=(4,), acceptances=(0.7,), kinds_requests=(64,))


@dataclass(kw_only=True)
class Deadline:
    """When to stop. `clock` gives seconds."""

    budget_s: float
    clock: Callable[[], float] = time.monotonic
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    @property
    def passed(self) -> bool:
        return self.clock() - self.started_s > self.budget_s


def measure(
    plan: Plan,
    passed: Passed,
    timer: Timer,
    device: str,
    machine: str,
    deadline: Deadline,
    save: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Fill a `Run`; `save` gets it after each step. Whatever there was no time for is named in `skipped`.

    Raises:
        CheckFailed: the kernel's tokens change when it reads all rows.
    """
    run = Run(machine=machine, versions=_versions(), copy_bandwidth=timer.copy_bandwidth())
    steps = _Steps(run, plan, timer, device)
    for name, step in steps.all():
        if deadline.passed:
            run.skipped.append(f"{name}: the time was up")
            continue
        step()
        save(run)
    return run


def kernel_call(given: Inputs, config: LaunchConfig | None = None, workspace: Workspace | None = None) -> Verification:
    """The kernel without the checks of its arguments, as an engine calls it."""
    from slipstream_kernels.spec_verify.kernel import verify_kernel  # needs `triton`

    return verify_kernel(
        given.target_logits,
        given.draft_token_ids,
        given.draft_lengths,
        given.draft_logits,
        given.sampling,
        given.positions,
        row_start=given.row_start,
        block_verification=given.block_verification,
        workspace=workspace,
        config=config,
    )


def input_sets(case: Case, rotated_bytes: float, device: str) -> list[Inputs]:
    """So many sets that together they are larger than the cache."""
    count = -(-rotated_bytes // predict(case).all_rows_bytes)
    return [inputs(case, number, device) for number in range(max(2, min(_MOST_SETS, int(count))))]


def workspace_of(case: Case, device: str) -> Workspace:
    """What an engine would keep for such calls."""
    return Workspace(
        case.requests,
        case.draft_tokens,
        case.vocabulary,
        draft_vocabulary=case.vocabulary if case.has_draft_logits else 0,
        filters=case.kind is Kind.FILTERED,
        block_verification=case.kind is Kind.BLOCK,
        device=device,
    )


def all_rows_config(case: Case) -> LaunchConfig:
    """The kernel's own configuration, with the early exit off."""
    return replace(default_config(case.requests, case.vocabulary), lazy=False)


class _Steps:
    """The parts of a run, each with its name."""

    def __init__(self, run: Run, plan: Plan, timer: Timer, device: str) -> None:
        self.run, self.plan, self.timer, self.device = run, plan, timer, device
        self.sampler = baselines.flashinfer_sampler()
        if self.sampler is None:
            run.skipped.append("FlashInfer: not installed")

    def all(self) -> Iterator[tuple[str, Callable[[], None]]]:
        plan = self.plan
        main = list(grid(plan.requests, plan.vocabularies, (_MAIN_DRAFT_TOKENS,), (_MAIN_ACCEPTANCE,)))
        for case in main:
            yield f"kernel and baselines, {_name(case)}", partial(self.main, case)
        for vocabulary in plan.vocabularies:
            case = replace(main[0], requests=plan.memory_requests, vocabulary=vocabulary)
            yield f"memory, {_name(case)}", partial(self.memory, case)
        for case in main:
            if case.requests in plan.compiled_requests:
                for mode in baselines.COMPILE_MODES:
                    yield f"torch.compile, mode {mode}, {_name(case)}", partial(self.compiled, case, mode)
        for case in main:
            if case.requests in plan.kinds_requests and case.vocabulary == plan.vocabularies[0]:
                for kind in Kind:
                    if kind is not Kind.ONE_HOT:
                        gamma = 7 if kind is Kind.RAGGED else case.draft_tokens
                        other = replace(case, kind=kind, draft_tokens=gamma)
                        yield f"kernel, {_name(other)}", partial(self.other, other)
        rest = grid(plan.requests, plan.vocabularies, plan.draft_tokens, plan.acceptances)
        for case in sorted(rest, key=lambda case: abs(case.draft_tokens - _MAIN_DRAFT_TOKENS)):
            if case not in main:
                yield f"kernel, {_name(case)}", partial(self.other, case)

    def main(self, case: Case) -> None:
        """The kernel, with and without its early exit, and the baselines that need no compilation."""
        sets = input_sets(case, self.plan.rotated_bytes, self.device)
        self._kernel(case, sets)
        self._packed(case, sets)
        self._baseline(case, What.EAGER, sets, baselines.eager)
        self._four_launches(case, sets)
        if self.sampler is not None:
            self._flashinfer(case, sets)

    def other(self, case: Case) -> None:
        """The kernel alone."""
        self._kernel(case, input_sets(case, self.plan.rotated_bytes, self.device))

    def compiled(self, case: Case, mode: str) -> None:
        """`torch.compile` in one mode; the faster one of a case is kept."""
        sets = input_sets(case, self.plan.rotated_bytes, self.device)
        self._baseline(case, What.COMPILED, sets, baselines.compiled(mode), f"mode {mode}")
        both = [one for one in self.run.measured if one.what is What.COMPILED and one.case == case]
        for slower in sorted(both, key=lambda one: one.time.median_us)[1:]:
            self.run.measured.remove(slower)

    def memory(self, case: Case) -> None:
        """What one call allocates that brings no workspace."""
        given = inputs(case, 0, self.device)
        kernel_call(given)
        peak = self.timer.peak_extra_bytes(lambda: kernel_call(given))
        self.run.memory.append(Memory(case=case, bytes=peak))

    def _kernel(self, case: Case, sets: Sequence[Inputs]) -> None:
        workspace = workspace_of(case, self.device)
        results = [kernel_call(given, workspace=workspace) for given in sets]
        calls = [partial(kernel_call, given, None, workspace) for given in sets]
        self._record(case, What.KERNEL, calls, [result.accepted for result in results])
        if case.kind is Kind.ONE_HOT:
            self._variant(case, What.ALL_ROWS, sets, results, all_rows_config(case), workspace)

    def _packed(self, case: Case, sets: Sequence[Inputs]) -> None:
        """Without being told where rows start: each program adds up the draft lengths before its own."""
        workspace = workspace_of(case, self.device)
        results = [kernel_call(given, workspace=workspace) for given in sets]
        packed = [replace(given, row_start=None) for given in sets]
        self._variant(case, What.PACKED, packed, results, None, workspace)

    def _variant(
        self,
        case: Case,
        what: What,
        sets: Sequence[Inputs],
        results: Sequence[Verification],
        config: LaunchConfig | None,
        workspace: Workspace,
    ) -> None:
        """The kernel run in another way, which gives the same tokens."""
        for given, result in zip(sets, results, strict=True):
            if not torch.equal(kernel_call(given, config, workspace).token_ids, result.token_ids):
                raise CheckFailed(f"{_name(case)}: {what.value} gives other tokens")
        calls = [partial(kernel_call, given, config, workspace) for given in sets]
        self._record(case, what, calls, [result.accepted for result in results])

    def _four_launches(self, case: Case, sets: Sequence[Inputs]) -> None:
        from slipstream_kernels.spec_verify.benchmark.four_launches import four_launches, processed  # needs `triton`

        copies = [processed(given) for given in sets]
        paired = list(zip(sets, copies, strict=True))
        accepted = [four_launches(given, copy)[1] for given, copy in paired]
        calls: list[Callable[[], object]] = [partial(four_launches, given, copy) for given, copy in paired]
        self._record(case, What.FOUR_LAUNCHES, calls, accepted)
        calls = [lambda given=given: four_launches(given, processed(given)) for given in sets]  # type: ignore[misc]
        self._record(case, What.FOUR_LAUNCHES_COPY, calls, accepted)

    def _flashinfer(self, case: Case, sets: Sequence[Inputs]) -> None:
        few = sets[: max(2, len(sets) // 4)]  # its inputs are four times as large as the logits
        run = partial(baselines.flashinfer, self.sampler)
        try:
            ready = [(given, baselines.one_hot_draft_probs(given), baselines.target_probs(given)) for given in few]
            accepted = [run(*each)[1] for each in ready]
            self._record(case, What.FLASHINFER, [partial(run, *each) for each in ready], accepted)
            calls = [partial(run, given, draft_probs, None) for given, draft_probs, _ in ready]
            self._record(case, What.FLASHINFER_SOFTMAX, calls, accepted)
        except (RuntimeError, TypeError, OSError) as error:  # it compiles itself at its first call, where it can
            self.run.skipped.append(f"FlashInfer, {_name(case)}: {error}")
            self.sampler = None

    def _baseline(
        self, case: Case, what: What, sets: Sequence[Inputs], baseline: baselines.Baseline, note: str = ""
    ) -> None:
        try:
            accepted = [baseline(given)[1] for given in sets]
            self._record(case, what, [partial(baseline, given) for given in sets], accepted, note)
        except RuntimeError as error:  # out of memory, or what torch.compile cannot do
            self.run.skipped.append(f"{what.value} {note}, {_name(case)}: {error}")

    def _record(
        self,
        case: Case,
        what: What,
        calls: Sequence[Callable[[], object]],
        accepted: Sequence[Tensor],
        note: str = "",
    ) -> None:
        counts = [one.tolist() for one in accepted]
        self.run.measured.append(
            Measured(
                case=case,
                what=what,
                time=self.timer.time(calls),
                needed_bytes=sum(needed_bytes(case, one) for one in counts) / len(counts),
                all_rows_bytes=predict(case).all_rows_bytes,
                mean_accepted=sum(map(sum, counts)) / sum(map(len, counts)),
                note=note,
            )
        )


def _versions() -> str:
    import triton

    return f"torch {torch.__version__}, triton {triton.__version__}"


def _name(case: Case) -> str:
    return (
        f"{case.kind.value}, V = {case.vocabulary}, B = {case.requests}, γ = {case.draft_tokens}, α = {case.acceptance}"
    )
