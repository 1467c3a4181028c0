"""Share of rare tokens in the answer: identifiers, amounts, dates, contacts and names, which no draft foresees."""

from __future__ import annotations

import re
from typing import NamedTuple

from slipstream_gateway.classify.view import NO_DIGITS, PromptView
from slipstream_gateway.classify.vocabulary import word_set
from slipstream_gateway.types import TaskType

# Begins with one set of characters, so that the scan over the text is fast and never goes back.
_NAME = re.compile(r"[A-Z][a-z]+ [A-Z][a-z]+")
_ASKED_FOR = word_set(
    "number numbers id ids amount amounts price prices date dates name names phone email e-mail address addresses "
    "iban invoice contract contracts codes entities fields emails customers contact contacts"
)

# How much of the material's rare tokens an answer repeats, and what it has without any.
_REPEATS = {
    TaskType.EXTRACTION: (0.08, 1.0), TaskType.SHORT_QA: (0.05, 0.6), TaskType.REWRITING: (0.01, 0.5),
    TaskType.TRANSLATION: (0.01, 0.8), TaskType.SUMMARIZATION: (0.02, 0.4), TaskType.CODE: (0.02, 0.0),
    TaskType.CLASSIFICATION: (0.0, 0.0), TaskType.MATH_REASONING: (0.08, 0.2),
    TaskType.CREATIVE_WRITING: (0.02, 0.2), TaskType.OPEN_CHAT: (0.03, 0.2), TaskType.UNKNOWN: (0.03, 0.4),
}  # fmt: skip
_DIGITS_PER_NUMBER = 4
_PER_ENTITY_ASKED = 0.06
_MAX_ENTITIES = 4
_JSON_DILUTION = 0.7  # keys and punctuation stand between the values


class RareGuess(NamedTuple):
    """Share of the answer's words in [0, 1], and why."""

    share: float
    evidence: tuple[str, ...]


def guess_rare_share(prompt: PromptView, task: TaskType, *, json: bool) -> RareGuess:
    """What the request asks to list, on top of what the material holds."""
    sample = prompt.sample
    words = sample.count(" ") + sample.count("\n") + 1
    digits = len(sample) - len(sample.translate(NO_DIGITS))
    found = digits / _DIGITS_PER_NUMBER + 2 * len(_NAME.findall(sample)) + sample.count("@")
    density = min(found / words, 1.0)
    base, repeats = _REPEATS[task]
    share = base + repeats * density
    evidence = [f"rare tokens: {density:.0%} of the prompt's words"]
    if task in (TaskType.EXTRACTION, TaskType.SHORT_QA):
        asked = sorted(_ASKED_FOR & prompt.words)[:_MAX_ENTITIES]
        if asked:
            share += _PER_ENTITY_ASKED * len(asked)
            evidence.append(f"asks for {', '.join(asked)}")
    if json:
        share *= _JSON_DILUTION
    return RareGuess(round(min(share, 1.0), 4), tuple(evidence))
