"""The length that a request states for its answer ("in 200 words", "answer yes or no"), or implies by its other parts.

A number and a unit are not enough: "a story about two characters", "42 characters per line" and "four pages were
missing" state nothing about the answer. The words before or after them must refer to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from slipstream_core.types import GenerationRequest

from slipstream_gateway.decide.classify.prompt import Prompt

_NUMBERS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "a single": 1, "ein": 1, "einem": 1, "einen": 1, "einer": 1, "zwei": 2, "drei": 3, "vier": 4, "fünf": 5, "une": 1,
    "un": 1, "deux": 2, "trois": 3, "quatre": 4, "cinq": 5, "una": 1, "dos": 2, "tres": 3, "cuatro": 4, "cinco": 5,
}  # fmt: skip
_TOKENS_PER_UNIT = {
    "word": 1.35, "sentence": 25.0, "line": 20.0, "paragraph": 100.0, "bullet": 24.0, "page": 600.0, "stanza": 45.0,
    "character": 0.25, "token": 1.0, "wort": 1.7, "wörter": 1.7, "satz": 28.0, "sätze": 28.0, "zeile": 22.0,
    "absatz": 120.0, "absätze": 120.0, "zeichen": 0.3, "mot": 1.5, "phrase": 28.0, "ligne": 22.0, "palabra": 1.5,
    "frase": 28.0, "línea": 22.0, "párrafo": 120.0,
}  # fmt: skip
_MEASURES = frozenset(unit for unit, tokens in _TOKENS_PER_UNIT.items() if tokens < 2)
_NUMBER = re.compile(
    rf"(?<![\w.,])(\d{{1,5}}|{'|'.join(_NUMBERS)})[ -](?:(?:short|brief|concise|full|simple|bullet|kurzen?) )?$"
)
_PLURAL = re.compile(r"(?:s|n|en|ern)?(?!\w)")
_NUMBER_CHARS = 24  # at most, with what stands between a number and its unit
# What stands directly before a quantity of the answer: a limit, or the words of an instruction.
_LIMIT = re.compile(
    r"\b(?:at most|max\.?|maximum(?: of| de)?|(?:no|not) more than|(?:less|fewer) than|under|below|within|up to"
    r"|höchstens|maximal|nicht mehr als|unter|bis zu|au plus|moins de|como máximo|máximo(?: de)?|menos de|no más de) $"
)
_INSTRUCTION = re.compile(
    r"\b(?:in|exactly|precisely|approximately|roughly|only|just|length:?|limit:?|genau|nur|etwa|en|environ|exactamente|unas"
    r"|(?:write|give|compose|draft|use|reply|respond|answer|return|output|provide|generate|schreibe?|écris|escribe)"
    r"(?: me| us| with| mir| moi)?(?: an?)?"
    r"|(?:limit|keep|cut|shorten|reduce|condense|compress|summari[sz]e|put|boil|trim|kürze)\w*(?: \S+){0,4}"
    r" (?:to|into|at|auf|à|a)) (?:the )?$"
)
_BEFORE_DIGITS = re.compile(r"\b(?:about|around|circa|ca\.|rund|of|von|de) $")  # and words, not pages
_BEFORE_PHRASE = re.compile(r"(?:^|[.:;,!?(\n]) ?$")
_AFTER_PHRASE = re.compile(r" ?(?:$|[.;,!)\n]|(?:only|please|long|about|in rhyme|in verse|explaining|describing)\b)")
_LIMIT_AFTER = re.compile(
    r" (?:max|maximum|maximal|tops|at most|(?:is|are) enough|suffice|reicht|reichen|genüg\w+|suffi\w+|bastan?"
    r"|or (?:less|fewer)|oder weniger|ou moins|o menos)\b"
)
_PER_PART = re.compile(r" (?:per|each|every|pro|je|jeweils|par|chacune?|por|cada)\b")
_ANSWER = re.compile(
    r" (?:\w+ )?(?:summary|essay|story|poem|article|plot|description|answer|reply|response|overview|explanation"
    r"|introduction|abstract|report|letter|e-?mail|post|review|message|note|caption|version|speech|biography|pitch|recap"
    r"|status|update|title|headline|slogan|comment)\b"
)
_CHOICE = re.compile(
    r"\b(?:answer|reply|respond|say|output|return|with|only|antworte|mit|nur|réponds|répondez|par|responde|con)"
    r"(?: with| only| a| mit| par| con)*\W{1,3}(?:yes|true|ja|oui|s[ií])\b\W{0,3}(?:or |oder |ou |o |)\W?"
    r"(?:no|false|nein|non)\b(?! \w)|^yes or no\?|[?:.] ?(?:yes|true) ?(?:/|or) ?(?:no|false)\b(?! \w)"
)
_CHOICE_SIGNS = (
    "or no", "/no", "/ no", " 'no", ' "no', " false", "/false", "'false", '"false', "oder nein", "ou non", " o no",
)  # fmt: skip
_LABELS = ("label only", "category only", "only the label", "only the category")
_WIDE = re.compile(r"(\d{2,5}) ?(?:个|個)?(?:文字|字|자)")  # so many characters of Chinese, Japanese or Korean
_TOKENS_PER_WIDE, _CHOICE_TOKENS = 1.2, 3.0
_MIN_CHARACTERS = 20  # fewer are a story's or a password's
_EDGE_CHARS = 160
_FORCED_CALL = frozenset({"tool_choice", "function_call"})  # `auto` and `none` are no features
_CALL_TOKENS = 45.0  # of a tool call: a name, and a few values that are copied
_CONTINUITY = 0.4  # weight of the last answer's length in a conversation


class StatedLength(NamedTuple):
    """The least and the most tokens that the request asks for, and the words that state them."""

    least: float
    most: float
    words: str


def stated_length(text: str, system: str) -> StatedLength | None:
    """The longest length that either end of `text`, or `system`, states; None if neither states any.

    The middle of a text is material, which may state lengths of other texts.
    """
    if len(text) > 2 * _EDGE_CHARS:
        text = f"{text[:_EDGE_CHARS]}\n{text[-_EDGE_CHARS:]}"
    text = f"{text}\n{system}".lower()
    found = list(_measures(text))
    if not text.isascii() and ("字" in text or "자" in text):
        found += [_between(int(match[1]) * _TOKENS_PER_WIDE, 0.5, match[0]) for match in _WIDE.finditer(text)]
    if not found:
        words = [phrase for phrase in _LABELS if phrase in text]
        if any(sign in text for sign in _CHOICE_SIGNS):
            words += [match[0].strip() for match in _CHOICE.finditer(text)]
        found = [StatedLength(1.0, _CHOICE_TOKENS, phrase) for phrase in words]
    return max(found, default=None)


def in_conversation(tokens: float, prompt: Prompt) -> float:
    """`tokens` of an answer, nearer to those of the last answer: a conversation has lengths of its own."""
    answered = prompt.answered_tokens
    return tokens ** (1.0 - _CONTINUITY) * max(answered, 1.0) ** _CONTINUITY if answered else tokens


def with_tools(tokens: float, request: GenerationRequest) -> float:
    """`tokens` of an answer, fewer if `request` has tools or choices: a tool call is short."""
    features = request.features
    if not features:
        return tokens
    if not features.isdisjoint(_FORCED_CALL):
        return _CALL_TOKENS
    if "guided_choice" in features:
        return _CHOICE_TOKENS
    if "tools" in features and request.messages and request.messages[-1].role == "user":
        return math.sqrt(tokens * _CALL_TOKENS)  # a call or an answer
    return tokens


def _measures(text: str) -> Iterator[StatedLength]:
    """The lengths in `text`, in small letters, that are those of the answer. Looks for the units, which are rarest."""
    for unit in [unit for unit in _TOKENS_PER_UNIT if unit in text]:
        at = text.find(unit)
        while at > 0:
            if text[at - 1] in " -" and (plural := _PLURAL.match(text, at + len(unit))):
                number = _NUMBER.search(text, max(at - _NUMBER_CHARS, 0), at)
                if number and (stated := _measure(text, number, unit, plural.end())):
                    yield stated
            at = text.find(unit, at + 1)


def _measure(text: str, number: re.Match[str], unit: str, end: int) -> StatedLength | None:
    """The length of the answer, if the quantity before `end` is one."""
    count, words = _NUMBERS.get(number[1]) or int(number[1]), text[number.start() : end]
    before, after = text[max(number.start() - 40, 0) : number.start()], text[end : end + 24]
    if _PER_PART.match(after) or (unit in ("character", "zeichen") and count < _MIN_CHARACTERS):
        return None
    tokens = count * _TOKENS_PER_UNIT[unit]
    if _LIMIT.search(before) or _LIMIT_AFTER.match(after):
        return _between(tokens, 0.5, words)
    is_phrase = _BEFORE_PHRASE.search(before) and _AFTER_PHRASE.match(after)
    is_size = number[1].isdigit() and unit in _MEASURES and _BEFORE_DIGITS.search(before)
    is_asked = is_size or _INSTRUCTION.search(before)
    return _between(tokens, 1.0, words) if is_phrase or is_asked or _ANSWER.match(after) else None


def _between(tokens: float, least: float, words: str) -> StatedLength:
    return StatedLength(max(least * tokens, 1.0), max(tokens, 1.0), words)
