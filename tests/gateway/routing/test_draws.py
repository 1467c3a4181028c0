"""Chance by request id: uniform, independent by purpose, and the same everywhere."""

from __future__ import annotations

import itertools
import math

import pytest
from slipstream_core.observation import Draws
from slipstream_gateway.decide.route import NO_DRAWS, RequestDraws

from tests.support.draws import draws_of

COUNT = 20_000
PURPOSES = ("hold_back", "exploration", "draft_length", "parity", "rollout")


def test_an_id_has_the_same_draws_under_a_secret_in_every_process_and_release() -> None:
    assert RequestDraws(b"secret of a deployment").of("demo") == Draws(
        hold_back=0.08196521690115333,
        exploration=0.35346956574358046,
        draft_length=0.14921953761950135,
        parity=0.19863796094432473,
        rollout=0.033143792767077684,
    )


@pytest.mark.parametrize("purpose", PURPOSES)
def test_what_is_known_of_one_secret_tells_nothing_of_another(purpose: str) -> None:
    """Whoever picks ids by a secret of his own, or by none, gets what everybody gets."""
    for guess in (b"", b"secret of a deploymen", b"secret of a deployment\0"):
        guessed, real = RequestDraws(guess), RequestDraws(b"secret of a deployment")
        picked = [f"r-{index}" for index in range(COUNT) if getattr(guessed.of(f"r-{index}"), purpose) < 0.1]
        held = sum(getattr(real.of(request_id), purpose) < 0.1 for request_id in picked) / len(picked)
        assert abs(held - 0.1) < 4 * math.sqrt(0.09 / len(picked))


def test_ids_of_any_text_have_draws_below_one() -> None:
    for request_id in ("", "ü", "\ud800", "x" * 10_000):
        found = draws_of(request_id)
        assert all(0.0 <= getattr(found, purpose) < 1.0 for purpose in PURPOSES)
    assert all(getattr(NO_DRAWS, purpose) < 1.0 for purpose in PURPOSES)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_share_of_ids_that_differ_in_one_digit_is_that_share(purpose: str) -> None:
    draws = [getattr(draws_of(f"request-{index}"), purpose) for index in range(COUNT)]
    for share in (0.02, 0.5, 0.9):
        found = sum(draw < share for draw in draws) / COUNT
        assert abs(found - share) < 4 * math.sqrt(share * (1 - share) / COUNT)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(PURPOSES, 2)))
def test_one_purpose_tells_nothing_of_another(one: str, other: str) -> None:
    pairs = [draws_of(f"request-{index}") for index in range(COUNT)]
    drawn = [draws for draws in pairs if getattr(draws, one) < 0.1]
    both = sum(getattr(draws, other) < 0.1 for draws in drawn) / len(drawn)
    assert abs(both - 0.1) < 4 * math.sqrt(0.09 / len(drawn))


def test_the_draw_for_a_new_revision_is_uniform_and_tells_nothing_of_the_others() -> None:
    draws = RequestDraws(b"secret of a deployment")
    ids = [f"request-{index}" for index in range(COUNT)]
    found = [draws.canary(one) for one in ids]
    assert found == [RequestDraws(b"secret of a deployment").canary(one) for one in ids]
    for share in (0.02, 0.5, 0.9):
        assert abs(sum(draw < share for draw in found) / COUNT - share) < 4 * math.sqrt(share * (1 - share) / COUNT)
    for purpose in PURPOSES:
        drawn = [one for one in ids if getattr(draws.of(one), purpose) < 0.1]
        both = sum(draws.canary(one) < 0.1 for one in drawn) / len(drawn)
        assert abs(both - 0.1) < 4 * math.sqrt(0.09 / len(drawn)), purpose
