"""Replaces in texts what one policy names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from slipstream_core.manifest.capture import Capture

from slipstream_gateway.capture.redaction import forms, numbers
from slipstream_gateway.capture.redaction.labelled import is_secret_name, labelled, looks_random, names_in
from slipstream_gateway.capture.redaction.services import service_keys
from slipstream_gateway.capture.redaction.tables import columns
from slipstream_gateway.capture.redaction.views import View, folded, views_of

Found = tuple[int, int, str]
"""Where something begins and ends, and what takes its place."""
Part = tuple[int, int, int]
"""The index of a text, and where a part of what is found begins and ends in it."""
_Spans = Callable[[str], Iterable[tuple[int, int]]]
_DATA_URL = re.compile(r"data:[\w.+/-]*+(?:;[\w=.+-]++)*?;base64,[A-Za-z0-9+/_=-]*+")
_SECRETS: tuple[_Spans, ...] = (forms.tokens, forms.commands, forms.urls, forms.kubernetes, forms.random_runs)
_KNOWN: Mapping[str, tuple[_Spans, ...]] = {
    "secret": _SECRETS,
    "email": (numbers.emails,),
    "iban": (numbers.ibans,),
    "card": (numbers.cards,),
    "ip": (numbers.addresses,),
    "phone": (numbers.phones,),
}


class Redactor:
    """Replaces what a policy names by its kind. `redactions` counts the replaced texts so far."""

    def __init__(self, capture: Capture) -> None:
        own = [(each.name, re.compile(each.pattern)) for each in capture.patterns]
        if capture.words:
            own.append(("word", _pattern_of(capture.words)))
        self._own: list[tuple[str, _Spans]] = [(name, partial(_matches, pattern)) for name, pattern in own]
        self._known = [(name, find) for name, finders in _KNOWN.items() if name in capture.redact for find in finders]
        self._services = service_keys() if "secret" in capture.redact else None
        self.redactions = 0

    def text(self, text: str) -> str:
        """`text` with the kinds' names in place of what is found, and `[data]` in place of media in URLs."""
        return self._replaced(text, self._places(text))

    def conversation(self, said: Sequence[tuple[str, str]]) -> list[str]:
        """The redacted texts of `(role, text)`, which stand one after the other. What begins in one and ends in another
        is replaced in each, also if another role has said something between both."""
        texts = [text for _, text in said]
        places: list[list[Found]] = [[] for _ in said]
        everything = [*range(len(said))]
        for parts, name in self._found(texts, everything, "\n"):
            for index, low, high in parts:
                places[index].append((low, high, name))
        alone = [[*each] for each in places]
        by_role = ([index for index in everything if said[index][0] == role] for role in {role for role, _ in said})
        for indexes in (everything, *(each for each in by_role if len(each) < len(said))):
            for parts, name in self._found(texts, indexes, "") if len(indexes) > 1 else ():
                for index, low, high in _continued(said, parts, name, alone):
                    places[index].append((low, high, name))
        return [self._replaced(text, found) for text, found in zip(texts, places, strict=True)]

    def json(self, node: Any) -> Any:
        """Plain JSON data with redacted texts, field names and numbers. A redacted number becomes a text."""
        if isinstance(node, str):
            return self.text(node)
        if isinstance(node, dict):
            return {self.text(name): self._value(name, value) for name, value in node.items()}
        if isinstance(node, list):
            return [self.json(item) for item in node]
        if type(node) is int:
            text = str(node)
            redacted = self.text(text)
            return node if redacted == text else redacted
        return node

    def _value(self, name: str, value: Any) -> Any:
        """The redacted value of a field. A text or number under a name such as `password` is a secret."""
        if self._services is None or not is_secret_name(name):
            return self.json(value)
        if isinstance(value, list):
            return [self._value(name, item) for item in value]
        if isinstance(value, dict) or value in (None, "", True, False):
            return self.json(value)
        self.redactions += 1
        return "[secret]"

    def _found(self, texts: Sequence[str], indexes: Sequence[int], between: str) -> Iterator[tuple[list[Part], str]]:
        """What is found in the texts of `indexes`, joined: each with its parts in the texts, and its name."""
        joined = between.join(texts[index] for index in indexes)
        begins = [0, *accumulate(len(texts[index]) + len(between) for index in indexes)]
        first = 0
        for begin, end, name in _joined(self._places(joined)):
            while begins[first + 1] <= begin:
                first += 1
            parts = []
            for at in range(first, len(indexes)):
                low, high = max(begin - begins[at], 0), min(end - begins[at], len(texts[indexes[at]]))
                if low < high:
                    parts.append((indexes[at], low, high))
                if begins[at + 1] >= end:
                    break
            yield parts, name

    def _places(self, text: str) -> Iterator[Found]:
        """What is found in the text as it is, and in each of its views."""
        views = [*views_of(text)]
        yield from ((begin, end, "[data]") for begin, end in _matches(_DATA_URL, text))
        for view in {id(each): each for each in (View(text), *views)}.values():
            for name, find in self._own:
                yield from _sourced(view, find(view.text), f"[{name}]")
        for view in views:
            yield from self._in_view(view)

    def _in_view(self, view: View) -> Iterator[Found]:
        for name, find in self._known:
            yield from _sourced(view, find(view.text), f"[{name}]")
        if self._services is None:
            return
        blocks = [*forms.key_blocks(view.text)]
        yield from _sourced(view, blocks, "[secret]")
        if view.was_encoded:
            yield from _sourced(view, forms.pairs(view.text), "[secret]")
        names = names_in(view.text)
        values = [*columns(view.text, names), *labelled(view.text, names)]
        for begin, end, label in values:
            yield (*view.source(begin, end), label)
        # What is found already would cost the scanner time: it is quadratic in the number of key blocks.
        known = sorted([*blocks, *((begin, end) for begin, end, _ in values)])
        yield from _sourced(view, self._services.find(_blanked(view.text, known)), "[secret]")

    def _replaced(self, text: str, places: Iterable[Found]) -> str:
        parts, done = [], 0
        for begin, end, name in _joined(places):
            parts += [text[done:begin], name]
            done = end
            self.redactions += 1
        return "".join([*parts, text[done:]]) if parts else text


def _continued(
    said: Sequence[tuple[str, str]], parts: Sequence[Part], name: str, alone: Sequence[Sequence[Found]]
) -> Iterator[Part]:
    """The parts of something that goes on in another text. If the first part is something by itself, the next text need
    not continue it: of a secret its first word does if it looks like one, and of an address nothing does."""
    index, low, high = parts[0]
    role, text = said[index]
    is_whole = any(begin <= low and high <= end for begin, end, _ in alone[index])
    if is_whole and name == "[email]":
        return
    yield parts[0]
    is_block = text.startswith(forms.KEY_BLOCKS, low)
    for (before, _, _), (index, begin, end) in pairwise(parts):
        if is_block or name != "[secret]" or (index == before + 1 and said[index][0] == role):
            yield index, begin, end
            continue
        word = said[index][1][begin:end].split(maxsplit=1)[0] if said[index][1][begin:end].strip() else ""
        if word and (not is_whole or looks_random(word)):
            yield index, begin, begin + said[index][1][begin:end].index(word) + len(word)
        return


def _joined(places: Iterable[Found]) -> Iterator[Found]:
    """Without overlaps: the longest one names what several make together."""
    current: Found | None = None
    longest = 0
    for begin, end, name in sorted(places, key=lambda each: (each[0], -each[1])):
        if current is not None and begin < current[1]:
            if end - begin > longest:
                longest = end - begin
                current = (current[0], max(end, current[1]), name)
            else:
                current = (current[0], max(end, current[1]), current[2])
            continue
        if current is not None:
            yield current
        current, longest = (begin, end, name), end - begin
    if current is not None:
        yield current


def _sourced(view: View, spans: Iterable[tuple[int, int]], name: str) -> Iterator[Found]:
    return ((*view.source(begin, end), name) for begin, end in spans if begin < end)


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    return (match.span() for match in pattern.finditer(text))


def _blanked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    parts, done = [], 0
    for begin, end in spans:
        parts += [text[done:begin], " " * (end - max(begin, done))]
        done = max(end, done)
    return "".join([*parts, text[done:]]) if parts else text


def _pattern_of(words: Sequence[str]) -> re.Pattern[str]:
    """Matches any of `words`, in any case of letters and with any space between their parts."""
    longest_first = sorted((folded(word).text for word in words), key=len, reverse=True)
    parts = "|".join(r"\s+".join(re.escape(part) for part in word.split()) for word in longest_first if word.split())
    return re.compile(rf"(?<!\w)(?:{parts})(?!\w)", re.IGNORECASE)
