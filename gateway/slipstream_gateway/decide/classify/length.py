"""The expected length of an answer: the one that the request states ("in 200 words", "yes or no"), else the usual one
of such tasks."""

from __future__ import annotations

import re
from typing import NamedTuple

from slipstream_core.types import TaskType

from slipstream_gateway.decide.classify.prompt import Prompt

_NUMBERS = {
    "a": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "single": 1, "ein": 1, "einem": 1, "einen": 1, "zwei": 2, "drei": 3, "une": 1, "deux": 2, "trois": 3,
    "una": 1, "dos": 2, "tres": 3,
}  # fmt: skip
_TOKENS_PER_UNIT = {
    "word": 1.4, "sentence": 25.0, "line": 22.0, "paragraph": 100.0, "bullet": 24.0, "page": 600.0, "stanza": 45.0,
    "character": 0.25, "token": 1.0, "satz": 25.0, "sätze": 25.0, "wort": 1.4, "wörter": 1.4, "phrase": 25.0,
    "mots": 1.4, "frase": 25.0, "palabras": 1.4,
}  # fmt: skip
# Set phrases that fix a length, in tokens, by a part of each: most prompts contain no part.
_FORMS = {
    "yes": {"yes or no": 4.0, "yes/no": 4.0},
    "true or": {"true or false": 4.0},
    "only": {"label only": 4.0, "category only": 4.0, "only the label": 4.0, "only the category": 4.0},
    "word": {"one word": 2.0, "single word": 2.0, "one-word": 2.0},
    "haiku": {"haiku": 24.0},
    "limerick": {"limerick": 60.0},
    "short status": {"short status": 22.0},
    "subject line": {"subject line": 14.0},
}
# A stated length always contains one of these, so that the pattern need not run over most prompts.
_SIGNS = ("word", "sentence", "line", "paragraph", "bullet", "page", "stanza", "token", "satz", "sätze", "wort",
          "wörter", "phrase", "mots", "frase", "palabras", "character")  # fmt: skip
_ASKED = re.compile(
    rf"(?:^|[\s(])(\d{{1,5}}|{'|'.join(_NUMBERS)})[\s-]+(?:(?:short|single|key|brief|concise|full|simple|bullet)[\s-]+)?"
    rf"({'|'.join(_TOKENS_PER_UNIT)})(?:s|n|en|ern)?\b"
)
_EDGE_CHARS = 160
_MAX_TOKENS = 5000.0
_USUAL = {
    TaskType.CODE: 200.0, TaskType.CLASSIFICATION: 4.0, TaskType.SHORT_QA: 15.0, TaskType.MATH_REASONING: 180.0,
    TaskType.CREATIVE_WRITING: 280.0, TaskType.OPEN_CHAT: 250.0,
}  # fmt: skip
# A summary for the record has sections, even of a short conversation; a query has one to five lines.
_RECORD_WORDS = ("call", "crm", "conversation", "transcript", "meeting", "minutes", "agent", "hand-over")
_REPLY_WORDS = ("reply", "respond", "answer")
_QUERY_WORDS = ("sql", "regex", "regular expression", "one-liner", "query")
_NOTE_WORDS = ("note", "status", "announcement", "tweet", "slogan", "invitation")


class StatedLength(NamedTuple):
    """The number of tokens that the request asks for, and the words that state it."""

    tokens: float
    words: str


def stated_length(text: str, system: str) -> StatedLength | None:
    """The longest length that either end of `text`, or `system`, states; None if neither states any.

    The middle of a text is material, which may mention unrelated lengths.
    """
    if len(text) > 2 * _EDGE_CHARS:
        text = f"{text[:_EDGE_CHARS]}\n{text[-_EDGE_CHARS:]}"
    text = f"{text}\n{system}".lower()
    for part, forms in _FORMS.items():
        if part in text:
            for form, tokens in forms.items():
                if form in text:
                    return StatedLength(tokens, form)
    for sign in _SIGNS:
        if sign in text:
            return max(map(_measure, _ASKED.finditer(text)), default=None)
    return None


def _measure(match: re.Match[str]) -> StatedLength:
    number = _NUMBERS.get(match[1]) or int(match[1])
    return StatedLength(max(number * _TOKENS_PER_UNIT[match[2]], 1.0), match[0].strip(" (\n"))


def expected_tokens(task: TaskType, prompt: Prompt, stated: StatedLength | None, factor: float) -> float:
    """The stated length, else `factor` times the usual one, bounded."""
    return stated.tokens if stated is not None else min(usual_tokens(task, prompt) * factor, _MAX_TOKENS)


def usual_tokens(task: TaskType, prompt: Prompt) -> float:
    """The usual number of tokens of an answer to such a request. It is not fitted, because lengths do not carry over
    between corpora."""
    material = prompt.material_tokens
    match task:
        case TaskType.SUMMARIZATION if _talks_of(_RECORD_WORDS, prompt):
            return min(max(0.8 * material, 170.0), 320.0)
        case TaskType.SUMMARIZATION:
            return min(max(0.4 * material, 50.0), 220.0)
        case TaskType.EXTRACTION if prompt.mentions_json:
            return min(max(0.6 * material, 90.0), 500.0)
        case TaskType.EXTRACTION:
            return min(max(0.4 * material, 20.0), 400.0)
        case TaskType.REWRITING if _talks_of(_REPLY_WORDS, prompt):
            return 130.0
        case TaskType.TRANSLATION | TaskType.REWRITING:
            return min(max(material - 12.0, 8.0), 2000.0)
        case TaskType.CODE if _talks_of(_QUERY_WORDS, prompt):
            return 45.0
        case TaskType.CREATIVE_WRITING if _talks_of(_NOTE_WORDS, prompt):
            return 100.0
    return _USUAL[task]


def _talks_of(words: tuple[str, ...], prompt: Prompt) -> bool:
    """Whether an end of the prompt, or its system prompt, contains one of `words`."""
    text = prompt.text
    if len(text) > 2 * _EDGE_CHARS:
        text = f"{text[:_EDGE_CHARS]}\n{text[-_EDGE_CHARS:]}"
    text = f"{text}\n{prompt.system}".lower()
    return any(word in text for word in words)
