"""The draws of a request: uniform, independent by purpose, and new each time."""

from __future__ import annotations

import itertools
import math

import pytest
from slipstream_core.observation import Draws
from slipstream_gateway.decide.route import NO_DRAWS, fresh_draws

COUNT = 20_000
PURPOSES = Draws.__struct_fields__


@pytest.fixture(scope="module")
def found() -> list[Draws]:
    return [fresh_draws() for _ in range(COUNT)]


def test_draws_are_below_one() -> None:
    highest = fresh_draws(lambda count: b"\xff" * count)
    assert all(0.999 < getattr(highest, purpose) < 1.0 for purpose in PURPOSES)
    assert all((getattr(NO_DRAWS, purpose) < 1.0) is (purpose not in ("parity", "canary")) for purpose in PURPOSES)
    assert fresh_draws(bytes) == Draws(**dict.fromkeys(PURPOSES, 0.0))


def test_no_draw_is_repeated(found: list[Draws]) -> None:
    assert len(set(found)) == COUNT


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_share_of_the_draws_is_that_share(found: list[Draws], purpose: str) -> None:
    for share in (0.02, 0.5, 0.9):
        below = sum(getattr(draws, purpose) < share for draws in found) / COUNT
        assert abs(below - share) < 5 * math.sqrt(share * (1 - share) / COUNT)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(PURPOSES, 2)))
def test_one_purpose_tells_nothing_of_another(found: list[Draws], one: str, other: str) -> None:
    drawn = [draws for draws in found if getattr(draws, one) < 0.1]
    both = sum(getattr(draws, other) < 0.1 for draws in drawn) / len(drawn)
    assert abs(both - 0.1) < 5 * math.sqrt(0.09 / len(drawn))
