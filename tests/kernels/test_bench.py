"""The benchmark of `verify` reports no time for a verifier whose tokens are not those of the definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from slipstream_kernels import Verification
from slipstream_kernels.spec_verify import bench
from slipstream_kernels.spec_verify.bench import Case, Inputs, compare, inputs, kernel, reference


def takes_noise_of_the_slot(given: Inputs) -> Verification:
    slots = torch.arange(len(given.positions), device=given.positions.device)
    return reference(given._replace(sampling=replace(given.sampling, seed=given.sampling.seed + slots)))


def ignores_filters(given: Inputs) -> Verification:
    off = replace(given.sampling, top_k=torch.zeros_like(given.sampling.top_k), largest_top_k=0, any_top_p=False)
    return reference(given._replace(sampling=off))


def breaks_ties_the_other_way(given: Inputs) -> Verification:
    if not given.sampling.all_greedy:
        return reference(given)
    last = given.target_logits.size(-1) - 1
    mirrored = given._replace(target_logits=given.target_logits.flip(-1), draft_token_ids=last - given.draft_token_ids)
    result = reference(mirrored)
    return result._replace(token_ids=torch.where(result.token_ids < 0, -1, last - result.token_ids))


def counts_one_too_few(given: Inputs) -> Verification:
    result = reference(given)
    return result._replace(lengths=result.lengths - 1)


@pytest.mark.parametrize(
    "fault", [takes_noise_of_the_slot, ignores_filters, breaks_ties_the_other_way, counts_one_too_few]
)
def test_a_wrong_verifier_has_no_speed(
    fault: Callable[[Inputs], Verification], device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--device", device], verifier=fault) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("no times are reported: Case(kind=")


@pytest.mark.skipif(torch.cuda.is_available(), reason="would go on to measure, for minutes")
def test_a_right_verifier_passes_and_is_not_timed_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--device", "cpu"], verifier=reference) == 0
    out = capsys.readouterr().out
    assert out == "3 cases on 'cpu': the kernel's tokens are those of the PyTorch implementation\n"


@pytest.mark.parametrize("kind", ["greedy", "sampled", "top-k 50, top-p 0.95"])
def test_the_kernel_passes(kind: str, device: str) -> None:
    compare(kernel, Case(kind=kind, requests=3, vocabulary=97), device)


@pytest.mark.parametrize("lazy", [True, False])
def test_the_early_exit_changes_no_token(lazy: bool, device: str) -> None:
    given = inputs(Case(kind="sampled", requests=3, vocabulary=97), 0, device)
    assert torch.equal(kernel(given, lazy=lazy).token_ids, reference(given).token_ids)


def test_drafts_are_accepted_as_often_as_stated() -> None:
    given = inputs(Case(kind="sampled", requests=900, vocabulary=200), 0, "cpu")
    expected = sum(bench.ACCEPTANCE**step for step in range(1, bench.DRAFTED + 1))
    assert reference(given).accepted.double().mean() == pytest.approx(expected, abs=0.15)
