"""A run measures everything it plans, with the code that a GPU runs; only the clock is another one here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
import torch
from slipstream_kernels.spec_verify.benchmark import baselines
from slipstream_kernels.spec_verify.benchmark.cases import Case, Kind, inputs
from slipstream_kernels.spec_verify.benchmark.checks import Passed
from slipstream_kernels.spec_verify.benchmark.figures import figures
from slipstream_kernels.spec_verify.benchmark.measure import Deadline, Plan, input_sets, measure
from slipstream_kernels.spec_verify.benchmark.predictions import tokens_per_step
from slipstream_kernels.spec_verify.benchmark.records import Run, What
from slipstream_kernels.spec_verify.benchmark.timing import Time, quartiles
from slipstream_kernels.spec_verify.benchmark.tune import configurations, table, tune

PASSED = Passed(findings=("checked",))
TINY = Plan(
    vocabularies=(150,),
    requests=(1,),
    draft_tokens=(1, 4),
    acceptances=(0.7,),
    compiled_requests=(),
    memory_requests=2,
    kinds_requests=(1,),
    rotated_bytes=100.0,
)


class WallClock:
    """A timer for machines without a GPU: its times mean nothing, but every call is made."""

    def time(self, calls: Sequence[Callable[[], object]]) -> Time:
        times = []
        for call in calls:
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
        return quartiles(times)

    def copy_bandwidth(self) -> float:
        return 1e9

    def peak_extra_bytes(self, call: Callable[[], object]) -> int:
        call()
        return 1000


@pytest.fixture(scope="module")
def run(device: str) -> Run:
    return measure(TINY, PASSED, WallClock(), device, "some machine", Deadline(budget_s=600))


def test_the_kernel_is_measured_in_every_case_with_and_without_its_early_exit(run: Run) -> None:
    for what in (What.KERNEL, What.ALL_ROWS):
        cases = {
            (one.case.requests, one.case.draft_tokens)
            for one in run.measured
            if one.what is what and one.case.kind is Kind.ONE_HOT
        }
        assert cases == {(1, 1), (1, 4)}


def test_baselines_are_measured_on_the_main_cases(run: Run) -> None:
    for what in (What.PACKED, What.EAGER, What.FOUR_LAUNCHES, What.FOUR_LAUNCHES_COPY):
        assert [one.case.requests for one in run.measured if one.what is what] == [1]


def test_every_other_kind_is_measured(run: Run) -> None:
    kinds = {one.case.kind for one in run.measured}
    assert kinds == set(Kind)


def test_what_is_not_there_is_named(run: Run) -> None:
    if baselines.flashinfer_sampler() is None:
        assert "FlashInfer: not installed" in run.skipped


def test_figures_can_be_made_of_it(run: Run) -> None:
    assert all(figure.measured for figure in figures(run, PASSED))


def test_after_the_deadline_nothing_is_measured_and_all_of_it_named() -> None:
    now = iter(range(1000))
    late = measure(TINY, PASSED, WallClock(), "cpu", "no GPU", Deadline(budget_s=0.5, clock=lambda: float(next(now))))
    assert late.measured == []
    assert any(line.startswith("kernel and baselines") and line.endswith("the time was up") for line in late.skipped)


def test_tuning_ranks_configurations_of_each_case(device: str) -> None:
    plan = Plan(vocabularies=(150,), requests=(1,), rotated_bytes=1.0)
    few = [config for config in configurations(150) if config.block == 2048][:2]
    tuned = tune(plan, PASSED, WallClock(), device, Deadline(budget_s=600), lambda vocabulary: iter(few))
    assert len(tuned) == len(few)
    assert table(tuned).count("| 150 | 1 | 2048 |") == min(3, len(few))


def test_inputs_rotate_past_the_cache() -> None:
    case = Case(requests=1, draft_tokens=4, vocabulary=1000, acceptance=0.7)
    assert len(input_sets(case, 95_000, "cpu")) == 10
    assert len(input_sets(case, 1, "cpu")) == 2


@pytest.mark.parametrize("baseline", ["eager", "four launches"])
def test_baselines_accept_as_often_as_the_case_says(baseline: str, device: str) -> None:
    from slipstream_kernels.spec_verify.benchmark.four_launches import four_launches, processed

    requests = 1000 if baseline == "eager" else 60
    case = Case(requests=requests, draft_tokens=3, vocabulary=200, acceptance=0.7)
    given = inputs(case, 0, device)
    torch.manual_seed(0)
    ids, accepted = baselines.eager(given) if baseline == "eager" else four_launches(given, processed(given))
    assert accepted.double().mean() == pytest.approx(tokens_per_step(0.7, 3) - 1, abs=0.4)
    assert ((ids >= 0).sum(1) == accepted + 1).all()
    assert (ids < 200).all()


def test_the_compiled_baseline_is_one_graph() -> None:
    given = inputs(Case(requests=2, draft_tokens=3, vocabulary=50, acceptance=0.7), 0, "cpu")
    arguments = (given.target_logits, given.draft_token_ids, given.sampling.temperature)
    explained = torch._dynamo.explain(baselines.by_probabilities)(*arguments)
    assert explained.graph_count == 1
