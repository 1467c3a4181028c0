"""Times the kernel and two baselines, eager PyTorch and `torch.compile`, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from slipstream_kernels.gpu_timing import Time, Timer
from slipstream_kernels.spec_verify.benchmark.cases import Case, Inputs, Kind, inputs
from slipstream_kernels.spec_verify.benchmark.checks import CheckFailed, Passed
from slipstream_kernels.spec_verify.kernel_config import LaunchConfig, default_config
from slipstream_kernels.spec_verify.result import PADDING, Verification
from slipstream_kernels.spec_verify.workspace import Workspace

ROTATED_BYTES = 240e6
"""Size of all inputs that one measurement rotates through: four times the L2 cache of an H200."""
_MOST_SETS = 256
_COMPILED_REQUESTS = (1, 64)
"""Batch sizes measured with `torch.compile`: each shape takes tens of seconds to compile."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Measurements of one case. A time that was not measured is None."""

    case: Case
    accepted: float
    """Mean number of accepted tokens per request."""
    needed_bytes: float
    """Bytes of logits that one call must read: the rows up to the end of each request."""
    kernel: Time
    all_rows: Time | None = None
    """The kernel with its early exit turned off."""
    eager: Time | None = None
    compiled: Time | None = None


@dataclass(kw_only=True)
class Run:
    """Results of one benchmark run."""

    device: str
    versions: str
    copy_bandwidth: float
    """Bytes per second, read plus written."""
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Measurements that failed, each with the reason."""


def measure(
    cases: Iterable[Case],
    passed: Passed,
    timer: Timer,
    device: str,
    device_name: str,
    rotated_bytes: float = ROTATED_BYTES,
    compiled_requests: Sequence[int] = _COMPILED_REQUESTS,
) -> Run:
    """Time every case. `passed` proves that the checks ran.

    Raises:
        CheckFailed: the kernel's tokens change when its early exit is off.
    """
    import triton

    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    run = Run(device=device_name, versions=versions, copy_bandwidth=timer.copy_bandwidth())
    for case in cases:
        sets = input_sets(case, rotated_bytes, device)
        row = _time_kernel(case, sets, timer)
        if case.kind is Kind.SAMPLED:
            row = replace(row, eager=_baseline(run, "eager PyTorch", case, sets, eager, timer))
            if case.requests in compiled_requests:
                torch.compiler.reset()
                fast = torch.compile(eager, dynamic=False, fullgraph=True)
                row = replace(row, compiled=_baseline(run, "torch.compile", case, sets, fast, timer))
        run.rows.append(row)
    return run


def input_sets(case: Case, rotated_bytes: float, device: str) -> list[Inputs]:
    """Two or more sets of inputs, `rotated_bytes` in all where 256 sets suffice."""
    count = -(-rotated_bytes // case.all_rows_bytes)
    return [inputs(case, number, device) for number in range(max(2, min(_MOST_SETS, int(count))))]


def kernel_call(given: Inputs, config: LaunchConfig | None = None, workspace: Workspace | None = None) -> Verification:
    """Run the kernel without argument checks, as an engine does."""
    from slipstream_kernels.spec_verify.kernel import verify_kernel  # needs `triton`

    return verify_kernel(
        given.target_logits,
        given.draft_token_ids,
        given.draft_lengths,
        given.sampling,
        given.positions,
        row_start=given.row_start,
        workspace=workspace,
        config=config,
    )


def workspace_of(case: Case, device: str) -> Workspace:
    """The workspace that an engine would keep for such calls."""
    return Workspace(
        case.requests,
        case.draft_tokens,
        case.vocabulary,
        filters=case.kind is Kind.FILTERED,
        device=device,
    )


def eager(target_logits: Tensor, draft_ids: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Rejection sampling of one-hot drafts in plain PyTorch, after the layout of vLLM's V1 sampler.

    Computes float32 probabilities of every row, a recovered token for every drafted position (argmax of probability
    over exponential noise, one row of noise per request) and a bonus token for every request, used or not.

    Args:
        target_logits: [B * (K + 1), V].
        draft_ids: int64 [B, K], drafts of equal length.
        temperature: [B].

    Returns:
        Token ids [B, K + 1] and accepted counts [B].
    """
    requests, steps = draft_ids.shape
    logits = target_logits.float().view(requests, steps + 1, -1) / temperature[:, None, None]
    probs = logits.softmax(-1)
    noise = torch.empty_like(probs[:, 0]).exponential_()
    target, last = probs[:, :-1], probs[:, -1]
    bonus = (last / noise).argmax(-1)
    chosen = draft_ids.unsqueeze(-1)
    accept = torch.rand(draft_ids.shape, device=probs.device) < target.gather(-1, chosen).squeeze(-1)
    recovered = (target.scatter(-1, chosen, 0.0) / noise.unsqueeze(1)).argmax(-1)
    last_tokens = torch.cat((recovered, bonus.unsqueeze(1)), 1)
    accepted = accept.long().cumprod(1).sum(1, keepdim=True)
    at = torch.arange(steps + 1, device=draft_ids.device)
    ids = torch.where(at < accepted, pad(draft_ids, (0, 1)), last_tokens)
    return ids.masked_fill(at > accepted, PADDING), accepted.squeeze(1)


def _time_kernel(case: Case, sets: Sequence[Inputs], timer: Timer) -> Row:
    workspace = workspace_of(case, str(sets[0].target_logits.device))
    results = [kernel_call(given, workspace=workspace) for given in sets]
    counts = [result.accepted.tolist() for result in results]
    row = Row(
        case=case,
        accepted=sum(map(sum, counts)) / sum(map(len, counts)),
        needed_bytes=sum(case.needed_bytes(count) for count in counts) / len(counts),
        kernel=timer.time([partial(kernel_call, given, None, workspace) for given in sets]),
    )
    if case.kind is not Kind.SAMPLED:
        return row
    config = replace(default_config(case.requests, case.vocabulary), lazy=False)
    for given, result in zip(sets, results, strict=True):
        if not torch.equal(kernel_call(given, config, workspace).token_ids, result.token_ids):
            raise CheckFailed(f"{case}: the tokens change when all rows are read")
    return replace(row, all_rows=timer.time([partial(kernel_call, given, config, workspace) for given in sets]))


def _baseline(
    run: Run,
    name: str,
    case: Case,
    sets: Sequence[Inputs],
    baseline: Callable[[Tensor, Tensor, Tensor], object],
    timer: Timer,
) -> Time | None:
    calls = [
        partial(baseline, given.target_logits, given.draft_token_ids, given.sampling.temperature) for given in sets
    ]
    try:
        for call in calls:
            call()
        return timer.time(calls)
    except RuntimeError as error:  # out of memory, or an unsupported operation in torch.compile
        run.skipped.append(f"{name}, {case}: {error}")
        return None
