"""The comparison of the content of two revisions' answers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from slipstream_core.observation import Content, Measure
from slipstream_operator.rollout.analysis.content import ChangedContent, ContentComparison

from tests.operator.test_analysis_revisions import answer

LIMIT = 0.15
Make = Callable[[random.Random], Content]


def refusing(share: float) -> Make:
    return lambda luck: {Measure.REFUSED: (100 * (luck.random() < share),)}


def letters(*shares: int) -> Make:
    """Shares that vary by some percent from answer to answer."""
    return lambda luck: {
        Measure.REFUSED: (0,),
        Measure.LETTERS: tuple(min(max(share + luck.randint(-3, 3), 0), 100) for share in shares),
    }


def compared(
    new: Make, serving: Make, *, count: int = 2000, seed: int = 1, share: float = 0.3
) -> tuple[ChangedContent | None, int, bool]:
    """The change that is shown, the new revision's answers until then, and whether the limit is kept at the end."""
    luck, found, answers = random.Random(seed), ContentComparison(LIMIT), 0
    for number in range(count):
        canary = luck.random() < share
        answers += canary
        content = (new if canary else serving)(luck)
        found.record(answer(number, 1.0, canary=canary, content=content))
        if (changed := found.changed) is not None:
            return changed, answers, False
    return None, answers, found.is_kept(is_long=False)


@pytest.mark.parametrize("seed", range(5))
def test_refusals_are_shown_and_named(seed: int) -> None:
    changed, answers, _ = compared(refusing(0.9), refusing(0.05), seed=seed)
    assert changed is not None
    assert (changed.measure, changed.name) == ("refused", "class summarization/long")
    assert changed.share > 0.7
    assert changed.serving_share < 0.2
    assert answers < 80


@pytest.mark.parametrize(
    ("new", "serving"),
    [
        (refusing(0.05), refusing(0.05)),
        (refusing(0.15), refusing(0.05)),
        (refusing(0.05), refusing(0.9)),
        (letters(13, 9, 8), letters(13, 9, 8)),
        (letters(14, 8, 8), letters(12, 9, 8)),
    ],
    ids=["equal refusals", "a few more", "fewer", "equal letters", "other words"],
)
def test_equal_or_better_content_is_never_shown_to_be_worse(new: Make, serving: Make) -> None:
    for seed in range(10):
        changed, _, is_kept = compared(new, serving, seed=seed)
        assert changed is None
        assert is_kept


@pytest.mark.parametrize("new", [letters(17, 4, 12), letters(2, 2, 2)], ids=["another language", "garbage"])
def test_other_letters_are_shown_in_either_direction(new: Make) -> None:
    serving = letters(12, 9, 7)
    for one, other in ((new, serving), (serving, new)):
        changed, answers, _ = compared(one, other)
        assert changed is not None
        assert changed.measure == "letters"
        assert answers < 250


def test_few_answers_of_a_kind_are_awaited_if_they_are_beyond_the_limit() -> None:
    found = ContentComparison(LIMIT)
    for number in range(60):
        content: Content = {Measure.REFUSED: (0,)}
        if number < 4:
            content = {**content, Measure.INVALID: (100 * (number % 2),)}
        found.record(answer(number, 1.0, canary=number % 2 == 1, content=content))
    assert not found.is_kept(is_long=False)
    assert found.is_kept(is_long=True)


def test_without_known_contents_more_answers_are_awaited() -> None:
    found = ContentComparison(LIMIT)
    for number in range(60):
        found.record(answer(number, 1.0, canary=number % 2 == 1))
    assert not found.is_kept(is_long=False)
    assert found.is_kept(is_long=True)


@pytest.mark.parametrize("content", [{"refused": (1000,)}, {"letters": ()}, {"unknown": (1,)}, {"cut": (100,)}])
def test_impossible_contents_do_not_count(content: Content) -> None:
    found = ContentComparison(LIMIT)
    for number in range(200):
        found.record(answer(number, 1.0, canary=number % 2 == 1, content=content if number % 2 else {}))
    assert found.changed is None


def test_without_a_limit_no_change_of_the_content_counts() -> None:
    found = ContentComparison(1.0)
    for number in range(400):
        canary = bool(number % 2)
        shares: Content = {Measure.REFUSED: (100 * canary,), Measure.LETTERS: (90 * canary, 90 * (not canary))}
        found.record(answer(number, 1.0, canary=canary, content=shares))
    assert found.changed is None
    assert found.is_kept(is_long=False)
