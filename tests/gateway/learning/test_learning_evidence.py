"""The live comparison: honest intervals, no figure without data, and a memory that fades evenly."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from scipy import stats
from slipstream_core.observation import Observation
from slipstream_core.types import Arm, Reason
from slipstream_gateway.decide.estimate import ArmComparisons, ClassEvidence
from slipstream_gateway.decide.estimate.student import quantile_975

from tests.gateway.learning.samples import observe


def arm(*, speculative: bool, **fields: object) -> Observation:
    """An answer of either arm of the comparison."""
    chosen = {"arm": Arm.SPECULATIVE, "reason": Reason.SPECULATION_PAYS} if speculative else {
        "arm": Arm.CONTROL, "reason": Reason.HOLD_BACK}  # fmt: skip
    return observe(**chosen | fields)


def only(evidence: ArmComparisons) -> ClassEvidence:
    (found,) = evidence.report("p")
    return found


def test_difference_and_interval_are_welchs() -> None:
    rng, evidence = random.Random(1), ArmComparisons()
    fast = [1.0 * math.exp(rng.gauss(0, 0.3)) for _ in range(40)]
    slow = [2.0 * math.exp(rng.gauss(0, 0.5)) for _ in range(9)]
    for seconds in fast:
        evidence.record(arm(speculative=True, e2e_s=seconds))
    for seconds in slow:
        evidence.record(arm(speculative=False, e2e_s=seconds))
    effect = only(evidence).e2e_s
    welch = stats.ttest_ind(fast, slow, equal_var=False).confidence_interval(0.95)
    assert effect.difference == pytest.approx(sum(fast) / 40 - sum(slow) / 9)
    assert (effect.ci_low, effect.ci_high) == pytest.approx((welch.low, welch.high), rel=1e-3)
    assert effect.speed_up == pytest.approx(sum(slow) / 9 / (sum(fast) / 40))
    assert effect.speed_up_low is not None
    assert effect.speed_up_high is not None
    assert effect.speed_up_low < effect.speed_up < effect.speed_up_high


def test_the_interval_of_the_speed_up_covers_it() -> None:
    rng, hits = random.Random(2), 0
    for _ in range(200):
        evidence = ArmComparisons()
        for _ in range(60):
            evidence.record(arm(speculative=True, ttft_s=None, e2e_s=rng.gauss(1.0, 0.2)))
        for _ in range(15):
            evidence.record(arm(speculative=False, ttft_s=None, e2e_s=rng.gauss(2.0, 0.4)))
        effect = only(evidence).e2e_s
        assert effect.speed_up_low is not None
        assert effect.speed_up_high is not None
        hits += effect.speed_up_low <= 2.0 <= effect.speed_up_high
    assert 180 <= hits <= 199


def test_too_little_data_gives_no_figure() -> None:
    evidence = ArmComparisons()
    assert evidence.report("p") == []
    for _ in range(5):
        evidence.record(arm(speculative=True))
    evidence.record(arm(speculative=False))
    found = only(evidence)
    assert (found.speculative, found.control) == (5, 1)
    assert found.e2e_s.speculative_mean == pytest.approx(2.1)
    for figure in ("difference", "ci_low", "ci_high", "speed_up", "speed_up_low", "speed_up_high"):
        assert getattr(found.e2e_s, figure) is None
    assert found.cost.control_mean is None
    assert b'"difference":null' in msgspec.json.encode(found)


def test_the_saved_server_time_is_that_of_all_speculative_answers() -> None:
    rng, evidence = random.Random(4), ArmComparisons()
    for _ in range(400):
        evidence.record(arm(speculative=True, priced_s=rng.gauss(0.5, 0.1)))
    for _ in range(40):
        evidence.record(arm(speculative=False, priced_s=rng.gauss(0.8, 0.1)))
    saved = only(evidence).saved
    assert saved is not None
    assert saved.seconds == pytest.approx(400 * 0.3, rel=0.15)
    assert saved.plain_s == pytest.approx(400 * 0.8, rel=0.05)
    assert 0.0 < saved.low < saved.seconds < saved.high


def test_servers_that_do_not_report_their_time_save_an_unknown_one() -> None:
    evidence = ArmComparisons()
    for speculative in (True, False) * 3:
        evidence.record(arm(speculative=speculative, priced_s=None))
    assert only(evidence).saved is None


def test_only_what_would_have_speculated_is_compared() -> None:
    evidence = ArmComparisons()
    for _ in range(3):
        evidence.record(arm(speculative=True))
        evidence.record(arm(speculative=True, reason=Reason.CLASS_ENABLED))
        evidence.record(arm(speculative=True, reason=Reason.EXPLORATION))
        evidence.record(arm(speculative=True, reason=Reason.CLIENT_ASKED))
        evidence.record(arm(speculative=True, status="cancelled"))
        evidence.record(observe())
    evidence.record(arm(speculative=False, e2e_s=-1.0))
    evidence.record(arm(speculative=False))
    found = only(evidence)
    assert (found.speculative, found.control, found.exploration) == (6, 1, 3)
    assert found.e2e_s.speculative_n == 6


def test_what_a_rollout_has_not_reached_is_control_and_what_failed_is_nothing() -> None:
    evidence = ArmComparisons()
    for reason in (Reason.ROLLOUT, Reason.HOLD_BACK):
        evidence.record(arm(speculative=False, reason=reason))
    for changes in ({"status": "upstream_unavailable"}, {"status": "parity", "parity": "match"}):
        evidence.record(arm(speculative=True, **changes))
    found = only(evidence)
    assert (found.speculative, found.control) == (0, 2)
    assert found.e2e_s.control_n == 2


def test_each_measure_is_what_it_says() -> None:
    evidence = ArmComparisons()
    answers = ((True, 1.1, 0.2), (True, 1.3, 0.6), (False, 2.1, 0.3), (False, 2.5, 0.7))
    shared = {"ttft_s": 0.1, "output_tokens": 101, "price_per_gpu_hour": 7.2}
    for speculative, e2e_s, priced_s in answers:
        evidence.record(arm(speculative=speculative, e2e_s=e2e_s, priced_s=priced_s, **shared))
    evidence.record(arm(speculative=True, e2e_s=1.2, **shared))  # of a server that does not tell its engine's time
    found = only(evidence)
    assert found.ttft_s.difference == pytest.approx(0.0)
    assert found.tpot_s.speculative_mean == pytest.approx(0.011)
    assert found.tpot_s.control_mean == pytest.approx(0.022)
    assert found.cost.speculative_mean == pytest.approx(0.002 * 0.4)
    assert found.cost.difference == pytest.approx(-0.002 * 0.1)
    assert (found.cost.speculative_n, found.e2e_s.speculative_n) == (2, 3)


def answers(rng: random.Random, key: str, *, faster: float, count: int) -> list[Observation]:
    """Answers of a key whose speculative arm is `faster` by that factor, one in ten of the control."""
    return [
        arm(
            speculative=index % 10 > 0,
            key=key,
            ttft_s=None,
            e2e_s=math.exp(rng.gauss(0.0, 0.2)) * (1.0 / faster if index % 10 else 1.0),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("others", [1, 2, 5])
@pytest.mark.parametrize("lie", [0.01, 0.6, 100.0])
def test_one_key_with_any_number_of_answers_moves_the_effect_of_others_within_their_noise(
    others: int, lie: float
) -> None:
    rng, evidence = random.Random(f"{others} {lie}"), ArmComparisons()
    honest = [one for key in range(others) for one in answers(rng, f"honest {key}", faster=1.5, count=400)]
    hostile = answers(rng, "hostile", faster=lie, count=10_000)
    for observation in rng.sample(honest + hostile, len(honest) + len(hostile)):
        evidence.record(observation)
    effect = only(evidence).e2e_s
    assert effect.speed_up is not None
    assert effect.speed_up_low is not None
    assert effect.speed_up_high is not None
    assert effect.speed_up_low <= 1.5 <= effect.speed_up_high
    if others == 1:  # nothing tells which of two keys lies: the interval has both
        assert effect.speed_up_low <= lie <= effect.speed_up_high
    else:
        assert 1.35 < effect.speed_up < 1.65
        assert effect.speed_up_low > 1.2
        assert effect.speed_up_high < 1.9


def test_the_interval_covers_the_effect_whatever_one_key_claims() -> None:
    hits = 0
    for run in range(100):
        rng, evidence = random.Random(run), ArmComparisons()
        for key in range(3):
            for observation in answers(rng, f"honest {key}", faster=1.5, count=100):
                evidence.record(observation)
        for observation in answers(rng, "hostile", faster=0.1, count=300):
            evidence.record(observation)
        effect = only(evidence).e2e_s
        hits += (effect.speed_up_low or 9.0) <= 1.5 <= (effect.speed_up_high or 0.0)
    assert hits >= 90


def test_keys_without_a_figure_of_their_own_count_together() -> None:
    evidence = ArmComparisons()
    for key in range(100):
        evidence.record(arm(speculative=True, key=f"{key}", e2e_s=1.0 + key % 7 / 100))
        evidence.record(arm(speculative=False, key=f"{key}", e2e_s=2.0 + key % 5 / 100))
    found = only(evidence)
    assert (found.speculative, found.control) == (100, 100)
    assert found.e2e_s.speed_up == pytest.approx(2.0, rel=0.05)
    assert len(evidence.comparisons("p")["summarization/long"]) <= 40


def test_classes_and_pairs_are_kept_apart() -> None:
    evidence = ArmComparisons()
    evidence.record(arm(speculative=True, request_class="code/long"))
    evidence.record(arm(speculative=True, request_class="summarization/long"))
    evidence.record(arm(speculative=True, pair="other"))
    assert [found.request_class for found in evidence.report("p")] == ["code/long", "summarization/long"]
    assert len(evidence.report("other")) == 1
    for index in range(1_000):
        evidence.record(arm(speculative=True, request_class=f"made-up/{index}"))
    assert len(evidence.report("p")) <= 128


def test_old_traffic_fades_in_both_arms_alike() -> None:
    evidence = ArmComparisons()
    for index in range(40_000):
        late = index >= 20_000
        evidence.record(arm(speculative=index % 10 > 0, ttft_s=None, e2e_s=2.0 if late else 1.0))
    effect = only(evidence).e2e_s
    assert effect.speculative_n < 20_000
    assert effect.control_n < 2_000.0
    assert effect.speculative_n / effect.control_n == pytest.approx(9, rel=0.02)
    assert effect.speculative_mean is not None
    assert effect.speculative_mean > 1.7
    assert effect.difference == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize("freedom", [1.0, 2.0, 3.0, 4.5, 10.0, 60.0, 1e6])
def test_students_quantile(freedom: float) -> None:
    assert quantile_975(freedom) == pytest.approx(float(stats.t.ppf(0.975, freedom)), rel=0.005)
