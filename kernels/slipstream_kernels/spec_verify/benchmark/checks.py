"""Correctness checks that precede every measurement. `measure` requires the `Passed` that `run_checks` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream_kernels.backend import Backend
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.spec_verify.benchmark.cases import (
    REQUESTS,
    VOCABULARIES,
    Case,
    Inputs,
    Kind,
    inputs,
)
from slipstream_kernels.spec_verify.benchmark.oracle import distance
from slipstream_kernels.spec_verify.result import Verification
from slipstream_kernels.spec_verify.verify import verify

Verifier = Callable[[Inputs], Verification]

_TOLERANCE = 1e-5
"""Rounding tolerance of a race, as a share of the winner's ratio: float32 sums over a vocabulary."""
_DIFFERENT = 0.01
"""Share of requests that may differ from the PyTorch implementation because of rounding."""
_FALSE_ALARM = 1e-6
"""Probability that a correct verifier fails one chi-squared test."""
_CHI_VOCABULARY = 5


class CheckFailed(Exception):
    """The verifier is wrong; the message names the case. No time may be reported."""


@dataclass(frozen=True, kw_only=True)
class Passed:
    """Proof that all checks passed in this process, with one finding per check. Only `run_checks` creates one."""

    findings: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.findings:
            raise CheckFailed("no check was run")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Extent of the checks."""

    vocabularies: tuple[int, ...]
    requests: tuple[int, ...]
    """Batch sizes. Ragged and filtered cases use only the last one."""
    examined: int
    """Requests per case that are compared with the float64 rule."""
    samples: int
    """Requests per chi-squared test."""


ON_A_GPU = Sizes(vocabularies=(1000, *VOCABULARIES), requests=(*REQUESTS, 100), examined=32, samples=20_000)
INTERPRETED = Sizes(vocabularies=(97, 1030), requests=(1, 6), examined=6, samples=120)


def run_checks(verifier: Verifier, sizes: Sizes, device: torch.device | str) -> Passed:
    """Compare `verifier` with the PyTorch implementation, the float64 rule and the target's distribution.

    Raises:
        CheckFailed: the first check that fails.
    """
    findings: list[str] = []
    for vocabulary in sizes.vocabularies:
        for requests in sizes.requests:
            case = Case(requests=requests, draft_tokens=4, vocabulary=vocabulary, acceptance=0.7)
            findings.append(_greedy(verifier, replace(case, kind=Kind.GREEDY), device))
            findings.append(_sampled(verifier, case, sizes.examined, device))
        findings.append(_sampled(verifier, replace(case, kind=Kind.RAGGED), sizes.examined, device))
        findings.append(_like_reference(verifier, replace(case, kind=Kind.FILTERED), device))
        findings.append(_slots(verifier, case, device))
    findings.append(_fit(verifier, sizes, device))
    return Passed(findings=tuple(findings))


def reference(given: Inputs) -> Verification:
    """The PyTorch implementation."""
    return _verify(given, "reference")


def kernel(given: Inputs) -> Verification:
    """The kernel through the public function, argument checks included."""
    return _verify(given, "kernel")


def _verify(given: Inputs, backend: Backend) -> Verification:
    return verify(
        given.target_logits, given.draft_token_ids, given.draft_lengths, given.sampling, given.positions,
        row_start=given.row_start, backend=backend,
    )  # fmt: skip


def _greedy(verifier: Verifier, case: Case, device: torch.device | str) -> str:
    """Greedy tokens equal the PyTorch implementation's, also on rounded logits with many ties."""
    for number in range(2):
        given = inputs(case, number, device)
        if number:
            given = replace(given, target_logits=given.target_logits.round_())
        result, expected = verifier(given), reference(given)
        if not (torch.equal(result.token_ids, expected.token_ids) and torch.equal(result.accepted, expected.accepted)):
            raise CheckFailed(f"{_name(case)}: tokens differ from the reference's")
    return f"{_name(case)}: same tokens as the reference, ties included"


def _sampled(verifier: Verifier, case: Case, examined: int, device: torch.device | str) -> str:
    """Every token wins its draw, up to rounding, in both implementations."""
    given = inputs(case, 0, device)
    result, expected = verifier(given), reference(given)
    same = (result.token_ids == expected.token_ids).all(1)
    different = (~same).nonzero()[:, 0].tolist()
    looked_at = sorted({*different, *range(min(examined, case.requests))})
    for request in looked_at:
        for name, theirs in (("the kernel", result), ("the reference", expected)):
            off = distance(given, theirs, request)
            if off > _TOLERANCE:
                raise CheckFailed(
                    f"{_name(case)}, request {request}: {name} deviates by {off:.2g} from the float64 rule"
                )
    return f"{_name(case)}: {len(looked_at)} requests follow the float64 rule, {len(different)} rounded differently"


def _like_reference(verifier: Verifier, case: Case, device: torch.device | str) -> str:
    given = inputs(case, 0, device)
    different = int((verifier(given).token_ids != reference(given).token_ids).any(1).sum())
    if different > max(1.0, _DIFFERENT * case.requests):
        raise CheckFailed(f"{_name(case)}: {different} of {case.requests} requests differ from the reference")
    return f"{_name(case)}: {case.requests - different} of {case.requests} requests equal the reference"


def _slots(verifier: Verifier, case: Case, device: torch.device | str) -> str:
    """Tokens do not depend on the order of the requests, nor on the other requests of the batch."""
    given = inputs(case, 1, device)
    tokens = verifier(given).token_ids
    backwards = torch.arange(case.requests - 1, -1, -1, device=device)
    for order in (backwards, backwards[:1]):
        if not torch.equal(verifier(_reordered(given, order)).token_ids, tokens[order]):
            raise CheckFailed(f"{_name(case)}: a request's tokens depend on other requests of the batch")
    return f"{_name(case)}: same tokens in reverse order and alone"


def _reordered(given: Inputs, order: Tensor) -> Inputs:
    """Requests `order` of inputs with one-hot drafts of equal length."""
    by_request = given.target_logits.view(len(given.positions), -1, given.target_logits.size(-1))
    return replace(
        given,
        target_logits=by_request[order].flatten(0, 1),
        draft_token_ids=given.draft_token_ids[order],
        draft_lengths=given.draft_lengths[order],
        sampling=given.sampling.rows(order),
        positions=given.positions[order],
        row_start=None,
    )


def _fit(verifier: Verifier, sizes: Sizes, device: torch.device | str) -> str:
    """Chi-squared test: two consecutive tokens have the target's joint distribution."""
    target, expected = _tables(device)
    counts = torch.zeros_like(expected)
    drawn = 0
    for batch in _batches(sizes.samples):
        first, second = _two_tokens(verifier, target, torch.arange(drawn, drawn + batch, device=device))
        counts += torch.bincount(first * _CHI_VOCABULARY + second, minlength=counts.numel())
        drawn += batch
    statistic = ((counts - expected * drawn) ** 2 / (expected * drawn)).sum()
    freedom = torch.tensor((counts.numel() - 1) / 2, dtype=torch.float64, device=device)
    chance = float(torch.special.gammaincc(freedom, statistic / 2))
    line = f"V = {_CHI_VOCABULARY}: two tokens of {drawn} requests, chi-squared p = {chance:.3g}"
    if not chance > _FALSE_ALARM:
        raise CheckFailed(f"{line}: differs from the target's distribution")
    return line


def _tables(device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Target logits after each token [V + 1, V], the last row for the start, and the joint distribution [V * V]."""
    generator = torch.Generator().manual_seed(5)
    target = torch.randn(_CHI_VOCABULARY + 1, _CHI_VOCABULARY, generator=generator).bfloat16().to(device)
    probs = target.double().softmax(-1)
    return target, (probs[-1][:, None] * probs[:-1]).flatten()


def _batches(samples: int) -> Iterator[int]:
    while samples > 0:
        yield min(samples, 512)
        samples -= 512


def _two_tokens(verifier: Verifier, target: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """The first two tokens of each request, from one step with two drafts and, if it emits one token, a second step."""
    device, requests = target.device, len(seeds)
    ids = torch.stack((seeds % 2, seeds % 3), 1)
    start = torch.full((requests, 1), target.size(0) - 1, device=device)
    step = Inputs(
        target_logits=target[torch.cat((start, ids), 1)].flatten(0, 1),
        draft_token_ids=ids,
        draft_lengths=torch.full((requests,), 2, device=device),
        sampling=SamplingBatch.of([1.0] * requests, [1.0] * requests, [0] * requests, seeds.tolist(), device),
        positions=torch.zeros(requests, dtype=torch.int64, device=device),
    )
    emitted = verifier(step).token_ids
    plain = replace(
        step,
        target_logits=target[emitted[:, 0].clamp(0, target.size(0) - 1)],
        draft_token_ids=ids[:, :0],
        draft_lengths=torch.zeros_like(step.draft_lengths),
        positions=step.positions + 1,
    )
    second = torch.where(emitted[:, 1] < 0, verifier(plain).token_ids[:, 0], emitted[:, 1])
    return emitted[:, 0].clamp(0), second.clamp(0)


def _name(case: Case) -> str:
    return f"{case.kind.value}, V = {case.vocabulary}, B = {case.requests}"
