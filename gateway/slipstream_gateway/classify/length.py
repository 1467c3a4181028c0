"""Expected output length: what the instruction asks for, else what such tasks usually take."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_gateway.classify.view import PromptView, Sentence
from slipstream_gateway.classify.vocabulary import word_set
from slipstream_gateway.types import GenerationRequest, TaskType

_NUMBERS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "single": 1, "ein": 1, "einem": 1, "zwei": 2, "drei": 3,
}  # fmt: skip
_TOKENS_PER_UNIT = {
    "word": 1.4, "character": 0.25, "sentence": 25.0, "line": 22.0, "paragraph": 100.0, "bullet": 24.0,
    "point": 24.0, "item": 16.0, "tip": 32.0, "idea": 28.0, "step": 32.0, "reason": 32.0, "page": 600.0,
    "stanza": 45.0, "satz": 25.0, "wort": 1.4, "wörtern": 1.4, "wörter": 1.4, "sätzen": 25.0, "sätze": 25.0,
    "label": 4.0, "category": 4.0, "token": 1.0,
}  # fmt: skip
_UNIT_WORDS = frozenset(_TOKENS_PER_UNIT) | {f"{unit}s" for unit in _TOKENS_PER_UNIT}
# Between the number and what is counted: "three short sentences".
_ADJECTIVES = word_set("single short key bullet main exact simple different brief concise more full")
# Set phrases that fix a length, in tokens.
_FORMS = {
    "yes or no": 4.0, "true or false": 4.0, "label only": 4.0, "category only": 4.0, "in a word": 1.4,
    "in a sentence": 25.0, "in a paragraph": 100.0, "tldr": 60.0, "haiku": 24.0, "tweet": 50.0, "limerick": 60.0,
    "headline": 16.0, "subject line": 14.0, "slogan": 14.0, "a title": 14.0, "short status": 22.0,
}  # fmt: skip
# How many sentences at either end may state a length; those between are material that talks of its own.
_EDGE_SENTENCES = 3
_SHORTER = word_set("short brief briefly concise concisely kurz kurze breve bref quick quickly")
_LONGER = word_set(
    "detailed detail comprehensive thorough thoroughly elaborate in-depth extensive long ausführlich detailliert "
    "détaillé detallado step-by-step"
)
_SECTIONS = word_set("structured sections call transcript conversation meeting crm")
_REPLY = word_set("reply respond response answer")
_QUERY = word_set("sql query regex one-liner")
_NOTE = word_set("note message status announcement")
_MAX_DIGITS = 5
_SHORTER_FACTOR, _LONGER_FACTOR = 0.7, 1.6
_REPLY_TOKENS, _QUERY_TOKENS, _NOTE_TOKENS, _JSON_MIN_TOKENS = 130.0, 45.0, 100.0, 90.0

_PRIOR = {
    TaskType.SUMMARIZATION: 90.0, TaskType.EXTRACTION: 60.0, TaskType.CODE: 110.0, TaskType.TRANSLATION: 60.0,
    TaskType.CLASSIFICATION: 4.0, TaskType.SHORT_QA: 20.0, TaskType.MATH_REASONING: 180.0,
    TaskType.CREATIVE_WRITING: 200.0, TaskType.OPEN_CHAT: 160.0, TaskType.REWRITING: 80.0, TaskType.UNKNOWN: 80.0,
}  # fmt: skip


class LengthGuess(NamedTuple):
    """Tokens of the answer, and why."""

    tokens: float
    evidence: tuple[str, ...]


def guess_length(request: GenerationRequest, prompt: PromptView, task: TaskType, *, json: bool) -> LengthGuess:
    """Output tokens that `request` will take; `max_tokens` is a cap, not an expectation."""
    asked = _asked(prompt)
    tokens, why = asked if asked is not None else _usual(prompt, task, json=json)
    if request.max_tokens is not None and tokens > request.max_tokens:
        return LengthGuess(float(request.max_tokens), (why, f"max_tokens {request.max_tokens} caps it"))
    return LengthGuess(round(tokens, 1), (why,))


def _asked(prompt: PromptView) -> tuple[float, str] | None:
    """A length that the instruction states: "in 200 words", "one-line"; the longest, where there are several."""
    sentences = prompt.sentences
    if len(sentences) > 2 * _EDGE_SENTENCES:
        sentences = sentences[:_EDGE_SENTENCES] + sentences[-_EDGE_SENTENCES:]
    sentences = sentences + prompt.system_sentences
    text = " ".join(" ".join(sentence) for sentence in sentences)
    for form, tokens in _FORMS.items():
        if form in text:
            return tokens, f"length: {form!r}"
    best: tuple[float, str] | None = None
    for sentence in sentences:
        if _UNIT_WORDS.isdisjoint(sentence):
            continue
        for index, word in enumerate(sentence):
            unit = _TOKENS_PER_UNIT.get(word) or _TOKENS_PER_UNIT.get(word.removesuffix("s"))
            number = _number_before(sentence, index) if unit else None
            if unit and number and (best is None or number * unit > best[0]):
                best = number * unit, f"length: {number} {word}"
    return best


def _number_before(sentence: Sentence, index: int) -> int | None:
    """The number that counts the word at `index`, over at most two adjectives."""
    for word in reversed(sentence[max(index - 3, 0) : index]):
        if word in _NUMBERS:
            return _NUMBERS[word]
        if word.isdecimal():
            return int(word[:_MAX_DIGITS])
        if word not in _ADJECTIVES:
            return None
    return None


def _usual(prompt: PromptView, task: TaskType, *, json: bool) -> tuple[float, str]:
    """The task's usual length, from the material where the answer follows it."""
    why = f"length: {task} over {prompt.material_tokens} tokens of material"
    tokens = _prior(prompt, task)
    if task in (TaskType.CLASSIFICATION, TaskType.SHORT_QA):
        return tokens, why
    if json and task is TaskType.EXTRACTION:
        tokens = max(tokens, _JSON_MIN_TOKENS)
    if not _LONGER.isdisjoint(prompt.words):
        return tokens * _LONGER_FACTOR, f"{why}, asked to be detailed"
    if not _SHORTER.isdisjoint(prompt.words):
        return tokens * _SHORTER_FACTOR, f"{why}, asked to be short"
    return tokens, why


def _prior(prompt: PromptView, task: TaskType) -> float:
    """Usual tokens of such an answer, before words like "short" and "detailed"."""
    words, material = prompt.words, float(prompt.material_tokens)
    match task:
        case TaskType.REWRITING if not _REPLY.isdisjoint(words):
            return _REPLY_TOKENS
        case TaskType.CODE if not _QUERY.isdisjoint(words):
            return _QUERY_TOKENS
        case TaskType.CREATIVE_WRITING if not _NOTE.isdisjoint(words):
            return _NOTE_TOKENS
        case TaskType.TRANSLATION | TaskType.REWRITING:
            return min(max(material - 12, 8.0), 4000.0)
        case TaskType.SUMMARIZATION if not _SECTIONS.isdisjoint(words):
            return min(max(material * 0.5, 160.0), 400.0)
        case TaskType.SUMMARIZATION:
            return min(max(material * 0.2, 50.0), 300.0)
        case TaskType.EXTRACTION:
            return min(max(material * 0.4, 30.0), 600.0)
    return _PRIOR[task]
