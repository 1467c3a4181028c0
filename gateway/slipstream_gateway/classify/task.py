"""Task type from the words of the instruction: points per task, the most points win."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slipstream_gateway.classify.view import PromptView, Sentence
from slipstream_gateway.classify.vocabulary import (
    CODE_MARKS,
    COMMANDS,
    FILLERS,
    LANGUAGES,
    MAKERS,
    MARKS_WITHOUT_SPACES,
    MATH_MARKS,
    MENTIONS,
    QUANTITY_QUESTIONS,
)
from slipstream_gateway.types import TaskType

_MAX_WORDS = 24

# A sentence at an end of the prompt is more often the instruction than one in its middle.
_EDGE_FACTOR = 1.5
_MIDDLE_FACTOR = 0.35
_SYSTEM_FACTOR = 0.7
_MAKER_FACTOR = 1.6
_SECOND_COMMAND_FACTOR = 0.7
_DOUBT = 1.2

_LANGUAGE_POINTS = 3.0
_MARK_POINTS = 1.2
_SUM_POINTS = 4.0
_SUM_MAX_TOKENS = 160
_QUESTION_POINTS = 0.8

# Most words start no term at all: one look-up each.
_TERM_STARTS = LANGUAGES | {term.split()[0] for term in MENTIONS}
_COMMAND_STARTS = frozenset(term.split()[0] for term in COMMANDS)
_STARTS = _TERM_STARTS | _COMMAND_STARTS

Hit = tuple[TaskType, float, str]


class TaskGuess(NamedTuple):
    """`confidence` is the winner's share of the points that speak for it, for the runner-up, and of doubt."""

    task: TaskType
    confidence: float
    evidence: tuple[str, ...]


def guess_task(prompt: PromptView) -> TaskGuess:
    """The task that most of the instruction's words speak for; UNKNOWN where none does."""
    points: dict[TaskType, float] = {}
    words: dict[TaskType, list[str]] = {}
    for sentence, factor in _weighted(prompt):
        if _STARTS.isdisjoint(sentence):  # most sentences of the material: nothing to score
            continue
        for task, value, word in _score(sentence):
            points[task] = points.get(task, 0.0) + value * factor
            words.setdefault(task, []).append(word)
    for task, value, word in _score_marks(prompt):
        points[task] = points.get(task, 0.0) + value
        words.setdefault(task, []).append(word)
    if not points:
        return TaskGuess(TaskType.UNKNOWN, 0.0, ("no word of the instruction names a task",))
    ranked = sorted(points.items(), key=lambda item: (-item[1], item[0]))
    best, value = ranked[0]
    second = ranked[1][1] if len(ranked) > 1 else 0.0
    found = ", ".join(dict.fromkeys(words[best][:6]))
    return TaskGuess(best, round(value / (value + second + _DOUBT), 3), (f"task {best}: {found}",))


def _weighted(prompt: PromptView) -> Iterator[tuple[Sentence, float]]:
    """Each sentence with what it counts for."""
    last = len(prompt.sentences) - 1
    for index, sentence in enumerate(prompt.sentences):
        edge = index <= 1 or index >= last - 1
        yield sentence[:_MAX_WORDS], _EDGE_FACTOR if edge else _MIDDLE_FACTOR
    for sentence in prompt.system_sentences:
        yield sentence[:_MAX_WORDS], _SYSTEM_FACTOR


def _score(sentence: Sentence) -> Iterator[Hit]:
    """Points of one sentence: its command, a second one after "and", and what it mentions."""
    start = 0
    while start < len(sentence) - 1 and sentence[start] in FILLERS:
        start += 1
    yield from _command(sentence, start, 1.0)
    if start:  # "can you", "you are": the words that were skipped may be a command themselves
        yield from _command(sentence, 0, 1.0)
    if "and" in sentence[start + 1 :]:
        yield from _command(sentence, sentence.index("and", start) + 1, _SECOND_COMMAND_FACTOR)
    if _TERM_STARTS.isdisjoint(sentence):
        return
    factor = _MAKER_FACTOR if sentence[start : start + 1] and sentence[start] in MAKERS else 1.0
    seen = set()
    for index, word in enumerate(sentence):
        if word not in _TERM_STARTS:
            continue
        pair = f"{word} {sentence[index + 1]}" if index + 1 < len(sentence) else ""
        term = pair if pair in MENTIONS else word
        if term in MENTIONS and term not in seen:
            seen.add(term)
            yield MENTIONS[term][0], MENTIONS[term][1] * factor, term
        if word in LANGUAGES and _asks_for_language(sentence, index):
            yield TaskType.TRANSLATION, _LANGUAGE_POINTS, word


def _command(sentence: Sentence, start: int, factor: float) -> Iterator[Hit]:
    """The longest command of at most three words that stands at `start`."""
    if start >= len(sentence) or sentence[start] not in _COMMAND_STARTS:
        return
    for length in (3, 2, 1):
        term = " ".join(sentence[start : start + length])
        if term in COMMANDS:
            task, points = COMMANDS[term]
            yield task, points * factor, term
            return


def _asks_for_language(sentence: Sentence, index: int) -> bool:
    before = sentence[index - 1] if index else ""
    after = sentence[index + 1] if index + 1 < len(sentence) else ""
    return before in ("to", "into", "in", "ins", "auf", "al", "en") or after in ("version", "translation", "speaking")


def _score_marks(prompt: PromptView) -> Iterator[Hit]:
    """Points for what is no word: code, formulas, sums to work out, scripts without spaces, a question mark."""
    for mark in CODE_MARKS:
        if mark in prompt.head:
            yield TaskType.CODE, _MARK_POINTS, mark.strip()
    for mark in MATH_MARKS:
        if mark in prompt.head:
            yield TaskType.MATH_REASONING, _MARK_POINTS, mark.strip()
    end = prompt.tail or prompt.head
    if prompt.material_tokens <= _SUM_MAX_TOKENS and sum(map(str.isdecimal, prompt.words)) >= 2:
        for phrase in QUANTITY_QUESTIONS:
            if phrase in prompt.head:
                yield TaskType.MATH_REASONING, _SUM_POINTS, phrase
                break
    if not (prompt.head.isascii() and end.isascii()):
        for mark, (task, points) in MARKS_WITHOUT_SPACES.items():
            if mark in prompt.head or mark in end or mark in prompt.system:
                yield task, points, mark
    if end.rstrip().endswith(("?", "？")):
        yield TaskType.SHORT_QA, _QUESTION_POINTS, "?"
