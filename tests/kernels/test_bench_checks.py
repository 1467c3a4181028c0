"""The benchmark reports no time for a wrong verifier, and lists its checks for a correct one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from slipstream_kernels import Verification
from slipstream_kernels.spec_verify import bench
from slipstream_kernels.spec_verify.benchmark import checks
from slipstream_kernels.spec_verify.benchmark.cases import Case, Inputs, Kind, inputs
from slipstream_kernels.spec_verify.benchmark.oracle import distance

ONE_CASE = Case(requests=6, draft_tokens=3, vocabulary=50, acceptance=0.7)


def accepts_everything(given: Inputs) -> Verification:
    certain = given.target_logits.float()
    first = 0
    for ids, length in zip(given.draft_token_ids, given.draft_lengths.tolist(), strict=True):
        certain[range(first, first + length), ids[:length]] = 1e4
        first += length + 1
    return checks.reference(replace(given, target_logits=certain))


def takes_noise_of_the_slot(given: Inputs) -> Verification:
    slots = torch.arange(len(given.positions), device=given.positions.device)
    return checks.reference(replace(given, sampling=replace(given.sampling, seed=given.sampling.seed + slots)))


def takes_noise_of_another_position(given: Inputs) -> Verification:
    return checks.reference(replace(given, positions=given.positions * 0))


def ignores_filters(given: Inputs) -> Verification:
    off = replace(given.sampling, top_k=torch.zeros_like(given.sampling.top_k), largest_top_k=0, any_top_p=False)
    return checks.reference(replace(given, sampling=off))


def breaks_ties_the_other_way(given: Inputs) -> Verification:
    last = given.target_logits.size(-1) - 1
    mirrored = replace(given, target_logits=given.target_logits.flip(-1), draft_token_ids=last - given.draft_token_ids)
    if not given.sampling.all_greedy:
        return checks.reference(given)
    result = checks.reference(mirrored)
    return result._replace(token_ids=torch.where(result.token_ids < 0, -1, last - result.token_ids))


def counts_one_too_few(given: Inputs) -> Verification:
    result = checks.reference(given)
    return result._replace(lengths=result.lengths - 1)


FAULTS = [
    accepts_everything,
    takes_noise_of_the_slot,
    takes_noise_of_another_position,
    ignores_filters,
    breaks_ties_the_other_way,
    counts_one_too_few,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_wrong_verifier_has_no_speed(
    fault: Callable[[Inputs], Verification], device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--device", device], verifier=fault) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("CHECKS FAILED, no times are reported")


@pytest.mark.skipif(torch.cuda.is_available(), reason="would go on to measure, for minutes")
def test_a_right_verifier_passes_and_nothing_measured_is_claimed_without_a_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.main(["--device", "cpu"], verifier=checks.reference) == 0
    out = capsys.readouterr().out
    assert "Checks on 'cpu' passed" in out
    assert "nothing was timed" in out


def test_the_kernel_passes(device: str) -> None:
    sizes = replace(checks.INTERPRETED, vocabularies=(97,), requests=(3,), examined=3, samples=20)
    passed = checks.run_checks(checks.kernel, sizes, device)
    assert any("chi-squared" in line for line in passed.findings)


def test_checks_that_were_not_run_do_not_pass() -> None:
    with pytest.raises(checks.CheckFailed, match="no check was run"):
        checks.Passed(findings=())


def test_a_distribution_that_is_a_little_off_is_found() -> None:
    def hotter(given: Inputs) -> Verification:
        return checks.reference(replace(given, target_logits=given.target_logits.float() * 0.9))

    sizes = replace(checks.INTERPRETED, vocabularies=(), samples=20_000)
    with pytest.raises(checks.CheckFailed, match="chi-squared"):
        checks.run_checks(hotter, sizes, "cpu")


@pytest.mark.parametrize("kind", [Kind.SAMPLED, Kind.RAGGED])
def test_the_float64_rule_agrees_with_the_reference(kind: Kind) -> None:
    given = inputs(replace(ONE_CASE, kind=kind), 0, "cpu")
    result = checks.reference(given)
    assert max(distance(given, result, request) for request in range(ONE_CASE.requests)) < 1e-6


def test_the_float64_rule_tells_a_token_next_to_the_right_one() -> None:
    given = inputs(ONE_CASE, 0, "cpu")
    result = checks.reference(given)
    last = result.accepted[0]
    result.token_ids[0, last] = (result.token_ids[0, last] + 1) % ONE_CASE.vocabulary
    assert distance(given, result, 0) > 1e-3
