"""The answers of an undisturbed run, recorded before anything is broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tests.e2e.chaos.answers import Answer
from tests.e2e.chaos.asks import Ask
from tests.e2e.chaos.load import ask_all
from tests.e2e.chaos.verdicts import Expected, Tally, Verdict

_STOP_CHARACTERS = 9
_MIN_CHARACTERS = 60


class NotRepeatable(AssertionError):
    """The same request got two answers though nothing was wrong: nothing could be judged by them."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the load asks, and the right answer to each by its name."""

    asks: tuple[Ask, ...]
    expected: Mapping[str, Expected]


def record(url: str, asks: Sequence[Ask], *, repeats: int = 1) -> Recorded:
    """Ask everything once, alone; then `repeats` times more, at once, which must give the same. Some greedy streams
    get a twin with a stop string from the middle of their answer, which cuts through tokens.

    Raises:
        NotRepeatable: an answer failed, or came out differently.
    """
    first = ask_all(url, asks)
    twins = [ask for answer in first if (ask := _stopping(answer)) is not None]
    asked = (*asks, *twins)
    answers = [*first, *ask_all(url, twins)]
    expected = {answer.ask.name: _expected(answer) for answer in answers}
    for _ in range(repeats):
        tally = Tally.of(ask_all(url, asked, at_once=4), expected)
        if tally.counts[Verdict.RIGHT] != tally.requests:
            raise NotRepeatable("; ".join(tally.examples()))
    return Recorded(asks=asked, expected=expected)


def _expected(answer: Answer) -> Expected:
    if answer.error or answer.broken or not answer.done or not answer.texts:
        raise NotRepeatable(f"{answer.ask.name}: {answer.status} {answer.error or answer.broken or 'no text'}")
    return Expected(texts=answer.texts, finish_reasons=answer.finish_reasons, output_tokens=answer.output_tokens)


def _stopping(answer: Answer) -> Ask | None:
    """The same request with a stop string that begins in the middle of a word."""
    text = answer.texts[0] if answer.texts else ""
    if "greedy" not in answer.ask.name or len(text) < _MIN_CHARACTERS:
        return None
    at = len(text) * 2 // 3
    stop = text[at : at + _STOP_CHARACTERS]
    return answer.ask.stopping_at(stop) if text.index(stop) > len(text) // 2 else None
