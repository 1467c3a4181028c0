"""The skeleton of a prompt: its instruction, with the parts masked that vary between requests.

A template's instruction is at one end of the prompt and opens with one of `cues.OPENERS` or is a short separate line;
everything else counts as material. Both ends are sampled, so that the time does not grow with the prompt.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from slipstream_gateway.decide.estimate.cues import FILLERS, HINTS, LEAD_INS, OPENERS, PROPER, SLOT_OPENERS, TASK_LABELS

WORD_BUCKETS = 4096
_MAX_WORDS = 12
END_CHARS = 240
_LINE_CHARS = 160
_SENTENCE_WORDS = 24
# Number of words of a sentence that identify it: later ones are mostly a slot ("a query that counts the *visits per
# agent*").
_KEY_WORDS = 6
_LAYOUT_CHARS = 100
_CACHE_ENTRIES = 4096

_QUOTED = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|„[^“\n]*“|«[^»\n]*»|`[^`\n]*`|(?<!\w)'[^'\n]+'(?!\w)")
_SENTENCE_END = re.compile(r"[.?!:;](?=\s|$)|[。？！：；]")
_JSON_KEY = re.compile(r"\"([A-Za-z_][A-Za-z_ -]{0,40})\"\s*:")
_PUNCTUATION = "¿¡.,;:!?()[]{}<>\"'`*_/\\|=~^@#$%&+-–—…“”„«»。，、？！：；（）「」"
_WIDE = str.maketrans("，、（）「」", "      ")
_ID, _NAME = "0", "N"
_ACRONYM_CHARS, _SHORT_CHARS = 5, 6


class Skeleton(NamedTuple):
    """`key` identifies the template; `words` are the instruction's masked words, those of `key` and further ones, each
    hashed to one of `WORD_BUCKETS`; `found` is whether there was an instruction at all."""

    key: str
    words: tuple[int, ...]
    found: bool


class _Line(NamedTuple):
    """The possible instruction in a line. `score`: 2 opens like an instruction, 1 hints at one, 0 neither; `start` is
    its first words, `label` set if it is a label, like "Agent:"."""

    score: int
    skeleton: Skeleton
    start: str
    label: bool


NOTHING = Skeleton("", (), False)


class Skeletons:
    """Skeletons of texts; caches lines, because templates repeat theirs. Not thread-safe."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def of(self, text: str) -> Skeleton:
        """The skeleton of `text`; only its ends are read."""
        head = text[:END_CHARS].lstrip()
        if head[:1] in ("{", "["):
            keys = _JSON_KEY.findall(head)
            if keys:
                return Skeleton("json:" + ",".join(keys), word_buckets(keys), True)
        first, _, rest = head.partition("\n")
        first = first[:_LINE_CHARS]
        opening = self._line(first)
        if opening.score < 2 and rest:
            second = self._line(rest.lstrip().partition("\n")[0][:_LINE_CHARS])
            if second.score == 2:
                opening = second._replace(score=1)
        tail = text[-END_CHARS:].rstrip()
        _, newline, last = tail.rpartition("\n")
        if opening.score == 2 and not newline:
            return opening.skeleton
        closing = self._closing(last, isolated=bool(newline))
        if closing.score > opening.score:
            return closing.skeleton
        if opening.score:
            return opening.skeleton
        return _by_layout(first, opening, isolated=bool(rest))

    def _closing(self, last: str, *, isolated: bool) -> _Line:
        return self._line(last if isolated and len(last) <= _LINE_CHARS else _last_sentence(last))

    def _line(self, line: str) -> _Line:
        found = self._lines.get(line)
        if found is None:
            if len(self._lines) >= _CACHE_ENTRIES:
                self._lines.clear()
            found = self._lines[line] = _read(line)
        return found


def _by_layout(first: str, opening: _Line, *, isolated: bool) -> Skeleton:
    """Without a cue, a label ("Agent:") or a short separate first line is taken as the template's."""
    if opening.label or (isolated and len(first) <= _LAYOUT_CHARS):
        return Skeleton("line:" + opening.start, opening.skeleton.words, False)
    return NOTHING


def _key(words: list[str]) -> str:
    """The identifier of the template: its first words, up to the beginning of a slot."""
    key: list[str] = []
    for word in words:
        if len(key) == _KEY_WORDS or (len(key) > 1 and word in SLOT_OPENERS):
            break
        if word not in FILLERS:
            key.append(word)
    return " ".join(key)


def _last_sentence(text: str) -> str:
    """The text after the last sentence end before the end of `text`."""
    text = text[-_LINE_CHARS:]
    start = 0
    for match in _SENTENCE_END.finditer(text, 0, len(text) - 1):
        start = match.end()
    return text[start:].lstrip() if start else ""


def _read(line: str) -> _Line:
    """The first meaningful sentence of `line`, with a second one if that continues the instruction."""
    if '"' in line or "'" in line or "`" in line or "“" in line or "«" in line or "„" in line:
        line = _QUOTED.sub(" 0 ", line)
    words: list[str] = []
    score, start, label = 0, 0, False
    while start < len(line):
        match = _SENTENCE_END.search(line, start)
        end = match.end() if match else len(line)
        sentence = masked_words(line[start:end])
        start = end
        if not sentence:
            continue
        points = _score(sentence)
        if score == 2 and points < 2:
            break
        words += sentence
        score = max(score, points)
        colon = match is not None and match[0] in ":："
        if colon or len(words) >= _SENTENCE_WORDS:
            label = colon and len(words) <= 2
            if not label or words[0] not in TASK_LABELS:
                break
        elif score < 2 and len(sentence) > 2:
            break
    if label and score < 2:
        words = words[:2]
    words = words[:_SENTENCE_WORDS]
    return _Line(score, Skeleton(_key(words), word_buckets(words), True), " ".join(words[:_KEY_WORDS]), label)


def _score(sentence: list[str]) -> int:
    for word in sentence[:6]:
        if word in OPENERS:
            return 0 if sentence[1:2] == ["table"] else 2  # a schema, not an instruction
        if word not in LEAD_INS:
            break
    return 1 if not HINTS.isdisjoint(sentence[:12]) else 0


def word_buckets(words: Sequence[str]) -> tuple[int, ...]:
    """The first words, hashed, each once: enough to recognise similar instructions, too little to recover the text."""
    hashes = [zlib.crc32(word.encode("utf-8", "surrogatepass")) % WORD_BUCKETS for word in words[:_MAX_WORDS]]
    return tuple(dict.fromkeys(hashes))


def masked_words(text: str) -> list[str]:
    """The words of `text` in lower case; ids, numbers, addresses and code as `0`, names as `N`, repeats once."""
    words: list[str] = []
    last = ""
    for raw in text.translate(_WIDE).split(None, _SENTENCE_WORDS)[:_SENTENCE_WORDS]:
        word = _masked_first(raw) if not words else _masked(raw)
        if word and word != last:
            words.append(word)
            last = word
    return words


@lru_cache(_CACHE_ENTRIES)
def _masked(raw: str) -> str:
    word = raw.strip(_PUNCTUATION)
    if word != word.lower() and word not in PROPER and not (word.isupper() and len(word) <= _ACRONYM_CHARS):
        return _NAME if _is_word(word) else _ID
    return _masked_first(raw)


@lru_cache(_CACHE_ENTRIES)
def _masked_first(raw: str) -> str:
    """The first word of a sentence is always capitalised."""
    word = raw.strip(_PUNCTUATION).lower()
    if not word:
        return ""
    if not _is_word(word):
        return _ID
    return word[:-3] + "ize" if word.endswith("ise") and len(word) > _SHORT_CHARS else word


def _is_word(word: str) -> bool:
    return word.isalpha() or word.replace("-", "").replace("'", "").replace("’", "").isalpha()
