"""The sequential test on sampled answers: found soon, never by chance, whatever the class, the server or the model."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from slipstream_gateway.lossless.score import ALARM_AT, MOST_PER_ANSWER, Factors, SampledTest, Sampling, factors_of

from tests.gateway.lossless.likelihoods import CONTEXTS, answer, draw, pair, score

MIXED = (Sampling(), Sampling(temperature=0.6), Sampling(temperature=1.4), Sampling(top_p=0.9), Sampling(top_k=10))


def _mixed(rng: random.Random, **options: object) -> list[tuple[Factors, Factors]]:
    """Answers of several settings and lengths, each with a plain one to the same request."""
    found = []
    for _ in range(150):
        sampling, tokens = rng.choice(MIXED), rng.choice((4, 20, 60, 120))
        found.append((answer(rng, sampling, tokens=tokens, **options), answer(rng, sampling, tokens=tokens)))  # type: ignore[arg-type]
    return found


def _answers_until_alarm(found: list[tuple[Factors, Factors]], rng: random.Random, most: int) -> int:
    test = SampledTest()
    while not test.alarm and test.answers < most:
        speculative, plain = rng.choice(found)
        test.add(pair(speculative, plain))
    return test.answers if test.alarm else most + 1


def test_garbage_is_found_within_five_answers() -> None:
    rng = random.Random(1)
    found = [(answer(rng, tokens=40, garbage=True), answer(rng, tokens=40)) for _ in range(60)]
    assert max(_answers_until_alarm(found, rng, 100) for _ in range(200)) <= 5


def test_each_answer_of_garbage_is_a_mismatch_by_itself() -> None:
    rng = random.Random(2)
    test = SampledTest()
    assert test.add(pair(answer(rng, garbage=True), answer(rng)))
    assert not test.alarm


def test_one_wrong_token_in_fifty_is_found_within_three_hundred_answers() -> None:
    rng = random.Random(3)
    found = _mixed(rng, wrong_every=50, wrong_rank=40)
    assert sorted(_answers_until_alarm(found, rng, 2000) for _ in range(40))[-1] <= 300


def test_sampler_that_is_too_sure_is_found() -> None:
    """Draft tokens that are the target's first choice, accepted where the target would have chosen otherwise."""
    rng = random.Random(4)
    found = _mixed(rng, wrong_every=10, wrong_rank=1)
    assert sorted(_answers_until_alarm(found, rng, 4000) for _ in range(20))[10] <= 2000


def _without_alarm(found: list[tuple[Factors, Factors]], rng: random.Random) -> SampledTest:
    """A test that never came near its alarm in a hundred thousand answers."""
    test, most = SampledTest(), 0.0
    for _ in range(100_000):
        one, other = rng.choice(found)
        test.add(pair(one, other) if rng.random() < 0.5 else pair(other, one))
        most = max(most, test.evidence)
    assert not test.alarm
    assert most < 0.75 * ALARM_AT
    return test


@pytest.mark.slow
def test_no_alarm_among_a_hundred_thousand_answers_that_are_exchangeable() -> None:
    rng = random.Random(5)
    _without_alarm(_mixed(rng), rng)


def test_distribution_that_the_gateway_does_not_know_raises_no_alarm() -> None:
    """A server whose own default is twice the temperature that the request seems to ask for: plain answers are as
    unlikely, so that the first test is switched off and the other sees no difference."""
    rng = random.Random(6)

    def hot() -> Factors:
        contexts = [rng.randrange(CONTEXTS) for _ in range(40)]
        scores = [score(context, draw(context, rng, Sampling(temperature=2.0))) for context in contexts]
        return factors_of(scores, Sampling())

    test = SampledTest()
    for _ in range(400):
        test.add(pair(hot(), hot()))
    assert not test.is_calibrated
    assert not test.alarm


def test_alarm_stays_and_counts_every_answer_after_it() -> None:
    rng = random.Random(7)
    test = SampledTest()
    while not test.alarm:
        test.add(pair(answer(rng, garbage=True), answer(rng)))
    assert test.add(pair(answer(rng), answer(rng)))
    assert test.alarm


def test_single_answer_is_never_enough() -> None:
    rng = random.Random(8)
    test = SampledTest()
    test.add(pair(answer(rng, tokens=2000, garbage=True), answer(rng, tokens=20)))
    assert not test.alarm
    assert test.evidence <= MOST_PER_ANSWER


def test_request_beyond_the_model_is_compared_with_its_plain_answer_alone() -> None:
    rng = random.Random(9)
    test = SampledTest()
    for _ in range(3):
        assert not test.add(pair(answer(rng, garbage=True), answer(rng), is_modelled=False))
    assert max(test.modelled) == 0.0
    while not test.alarm:
        test.add(pair(answer(rng, garbage=True), answer(rng), is_modelled=False))
    assert 20 <= test.answers <= 60


def test_equal_answers_are_counted_and_change_nothing() -> None:
    test = SampledTest()
    test.add_equal()
    assert (test.answers, test.evidence, test.alarm) == (1, 0.0, False)


def _real(kind: str) -> list[tuple[Factors, Factors]]:
    """Answers of the embedded pair on vLLM 0.32, as `tests/benchmarks/sampled_parity.py` wrote them at commit
    3fea572."""
    lines = Path(__file__).with_name("scored_answers.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=_Row) for line in lines]
    return [(row.speculative, row.plain) for row in rows if row.kind == kind]


class _Row(msgspec.Struct):
    kind: str
    speculative: Factors
    plain: Factors


def test_garbage_of_a_real_sampler_is_found_within_five_answers() -> None:
    rng = random.Random(10)
    found = sorted(_answers_until_alarm(_real("garbage"), rng, 100) for _ in range(500))
    assert found[int(0.99 * len(found))] <= 5
    assert found[-1] <= 8  # answers of two or three tokens now and then


def test_real_draft_tokens_accepted_wrongly_in_one_of_93_positions_are_found_within_three_hundred_answers() -> None:
    rng = random.Random(11)
    assert max(_answers_until_alarm(_real("drift"), rng, 1000) for _ in range(200)) <= 300


@pytest.mark.slow
def test_real_plain_answers_raise_no_alarm_in_a_hundred_thousand() -> None:
    assert _without_alarm(_real("plain"), random.Random(12)).is_calibrated
