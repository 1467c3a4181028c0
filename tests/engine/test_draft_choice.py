"""The choice of a draft by its group, on costs that are drawn from known distributions."""

from __future__ import annotations

import math
import random

import pytest
from slipstream_engine.drafts.choice import MOST_GROUPS, DraftBandit

SPREAD = 0.3  # of the logarithm of an answer's cost


class World:
    """Answers whose seconds per token are spread about the mean of their draft."""

    def __init__(self, drafts: int, seed: int) -> None:
        self.choice = DraftBandit(drafts, random.Random(seed))
        self._rng = random.Random(seed + 1000)

    def answers(self, group: str, means: tuple[float, ...], count: int) -> list[int]:
        """The drafts of the next `count` answers."""
        taken = []
        for _ in range(count):
            number = self.choice.choose(group)
            taken.append(number)
            cost = means[number] * math.exp(self._rng.gauss(0.0, SPREAD))
            self.choice.learn(group, number, 50 * cost, 50)
        return taken


def test_each_group_gets_the_draft_that_is_cheapest_for_it() -> None:
    world = World(3, seed=1)
    for group, means in (("a", (1.0, 1.4, 1.6)), ("b", (1.5, 1.0, 1.5))):
        world.answers(group, means, 200)
        best = means.index(min(means))
        assert world.answers(group, means, 200).count(best) > 170
    costs = world.choice.costs()["b"]
    assert costs[1][1] == pytest.approx(1.0, rel=0.1)
    assert costs[1][0] > costs[0][0]


@pytest.mark.parametrize("seed", range(8))
def test_a_worse_draft_gets_few_answers(seed: int) -> None:
    """One that takes half as long again has a tenth of the first 300 answers at most."""
    taken = World(2, seed).answers("a", (1.0, 1.5), 300)
    assert taken.count(1) <= 30


@pytest.mark.parametrize("seed", range(6))
def test_one_slow_first_answer_does_not_hide_a_better_draft(seed: int) -> None:
    world = World(2, seed)
    for number in (0, 0):
        world.choice.learn("a", number, 50 * 1.0, 50)
    world.choice.learn("a", 1, 50 * 10.0, 50)  # compiled, loaded, or beside a busy neighbour
    world.answers("a", (1.0, 0.7), 250)
    assert world.answers("a", (1.0, 0.7), 100).count(1) > 70


def test_of_equal_drafts_both_are_taken() -> None:
    taken = World(2, seed=3).answers("a", (1.0, 1.0), 400)
    assert set(taken) == {0, 1}


def test_a_change_is_noticed() -> None:
    world = World(2, seed=4)
    world.answers("a", (1.0, 1.5), 1000)
    world.answers("a", (1.5, 1.0), 1000)
    assert world.answers("a", (1.5, 1.0), 200).count(1) > 160


def test_a_single_draft_is_no_choice() -> None:
    choice = DraftBandit(1)
    assert choice.choose("a") == 0
    choice.learn("a", 0, 1.0, 10)
    assert choice.costs() == {}


def test_answers_without_a_time_teach_nothing() -> None:
    choice = DraftBandit(2)
    for seconds, tokens in ((0.0, 10), (1.0, 0)):
        choice.learn("a", 0, seconds, tokens)
    assert choice.costs() == {}


def test_the_number_of_groups_is_limited() -> None:
    choice = DraftBandit(2)
    for number in range(2 * MOST_GROUPS):
        choice.choose(str(number))
    assert len(choice.costs()) == MOST_GROUPS
    assert str(2 * MOST_GROUPS - 1) in choice.costs()
