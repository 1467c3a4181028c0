"""A rule of the manifest that its types cannot express: a function for gateways and operator, and an expression in
Common Expression Language (CEL) for API servers, both made of the same terms.

Terms name fields as manifests do. A field that is null counts as absent. Only functions that every CEL implementation
has are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

import msgspec

from slipstream_core.manifest.check import Problem, show

_SHOWN = re.compile(r", got \{\}|:? \(?\{\}\)?")
"""The parts of a message that show values, which an API server's messages lack."""


class Term(NamedTuple):
    """A value: by an object, `self` in CEL, and in a rule for the items of a list also by one `item`. `cel` needs no
    parentheses in larger expressions."""

    cel: str
    of: Callable[[Any, Any], Any]

    def __or__(self, other: Term) -> Term:
        return Term(f"({self.cel} || {other.cel})", lambda *at: self.of(*at) or other.of(*at))

    def __and__(self, other: Term) -> Term:
        return Term(f"({self.cel} && {other.cel})", lambda *at: self.of(*at) and other.of(*at))

    def __invert__(self) -> Term:
        return Term(f"!{self.cel}", lambda *at: not self.of(*at))

    def is_in(self, *values: str | int) -> Term:
        """Whether the value is one of `values`."""
        compared = f"== {values[0]!r}" if len(values) == 1 else f"in {list(values)}"
        return Term(f"({self.cel} {compared})", lambda *at: self.of(*at) in values)

    def equals(self, other: Term) -> Term:
        """Whether the two values are equal."""
        return Term(f"({self.cel} == {other.cel})", lambda *at: self.of(*at) == other.of(*at))

    def at_most(self, most: Term) -> Term:
        """Whether the value is not above `most`."""
        return Term(f"({self.cel} <= {most.cel})", lambda *at: self.of(*at) <= most.of(*at))

    def starts_with(self, prefix: str) -> Term:
        """Whether the text begins with `prefix`."""
        return Term(f"{self.cel}.startsWith('{prefix}')", lambda *at: self.of(*at).startswith(prefix))

    def matches(self, pattern: str) -> Term:
        """Whether the whole text fits `pattern`, which has anchors."""
        return Term(f"{self.cel}.matches('{pattern}')", lambda *at: re.fullmatch(pattern, self.of(*at)) is not None)

    def times(self, other: Term) -> Term:
        """The product of the two numbers."""
        return Term(f"({self.cel} * {other.cel})", lambda *at: self.of(*at) * other.of(*at))

    def divides(self, other: Term) -> Term:
        """Whether `other` is a multiple of the number."""
        return Term(f"({other.cel} % {self.cel} == 0)", lambda *at: other.of(*at) % self.of(*at) == 0)


def literal(value: str | float) -> Term:
    """A value that is always the same."""
    return Term(repr(value), lambda *_: value)


def field(path: str, default: Term | str | float | None = None) -> Term:
    """The value at `path`, or `default` where it is absent."""
    read = reader(path)
    if default is None:
        return Term(_in_cel(path), read)
    other = default if isinstance(default, Term) else literal(default)

    def of(*at: Any) -> Any:
        found = read(*at)
        return other.of(*at) if found is None else found

    return Term(f"({given(path).cel} ? {_in_cel(path)} : {other.cel})", of)


def given(path: str) -> Term:
    """Whether the field at `path` is present."""
    read = reader(path)
    root, *names = _in_cel(path).split(".")
    fields = [f"has({'.'.join((root, *names[:count]))})" for count in range(1, len(names) + 1)]
    return Term(fields[0] if len(fields) == 1 else f"({' && '.join(fields)})", lambda *at: read(*at) is not None)


def filled(path: str) -> Term:
    """Whether the list at `path` has items."""
    return given(path) & Term(f"(size({_in_cel(path)}) > 0)", reader(path))


def reader(path: str) -> Callable[[Any, Any], Any]:
    """The function that reads the field at `path`, None where it is absent."""
    names = path.split(".")
    is_of_item = names[0] == "item"
    attributes = [_attribute(name) for name in names[is_of_item:]]

    def read(owner: Any, item: Any) -> Any:
        found = item if is_of_item else owner
        for attribute in attributes:
            found = getattr(found, attribute, None)
        return found

    return read


def _in_cel(path: str) -> str:
    return path if path.split(".")[0] == "item" else f"self.{path}"


def _attribute(name: str) -> str:
    """The Python name of the field that a manifest calls `name`."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


class Rule(NamedTuple):
    """A rule for the objects of a type. `problems` yields those of an object at a path, for gateways and operator. For
    API servers `cel` must be true, else `message`; it is empty if they do not have the rule."""

    problems: Callable[[Any, str], Iterator[Problem]]
    cel: str = ""
    message: str = ""


def rule(path: str, holds: Term, message: str, *shown: Term) -> Rule:
    """`holds` must be true, else `message` concerns the field at `path`, or the object itself if that is empty. It has
    a `{}` for each value of `shown`, by default that of the field.

    After a list, `path` has `[]`: the rule is for each item. The items of a mapping are its keys.
    """
    listed, is_of_items, below = path.partition("[]")
    read, terms = reader(listed), shown or (field(_of_item(path)),)

    def places(owner: Any) -> Iterator[tuple[str, Any]]:
        if not is_of_items:
            yield path, None
            return
        items = read(owner, None) or ()
        for index, item in enumerate(items):
            place = f".{item}" if isinstance(items, Mapping) else f"[{index}]"
            yield f"{listed}{place}{below}", item

    def problems(owner: Any, base: str) -> Iterator[Problem]:
        for place, item in places(owner):
            if not holds.of(owner, item):
                text = message.format(*(_as_text(term.of(owner, item)) for term in terms))
                yield Problem(f"{base}.{place}" if place else base, text)

    cel = f"{(~given(listed)).cel} || self.{listed}.all(item, {holds.cel})" if is_of_items else holds.cel
    subject = f"an item of {listed}" if is_of_items and not below else f"{listed}{below}"
    return Rule(problems, cel, f"{subject} {_SHOWN.sub('', message)}".strip())


def required(path: str, when: Term, why: str) -> Rule:
    """The field at `path` must be present if `when` is true."""
    return rule(path, ~when | given(_of_item(path)), f"is required {why}")


def no_effect(path: str, when: Term, why: str, default: str | int | tuple[()] | None = None) -> Rule:
    """The field at `path` must have its default if `when` is true."""
    if default is None:
        is_unset = ~given(_of_item(path))
    elif isinstance(default, tuple):
        is_unset = ~filled(path)
    else:
        is_unset = field(path, default).is_in(default)
    return rule(path, is_unset | ~when, f"has no effect {why}, leave it out")


def unique(listed: str, name: str, message: str, *, cel: bool = True) -> Rule:
    """The items of a list must differ in their field `name`, or as a whole if that is empty. `message` has a `{}` for
    the repeated value."""
    items, below = reader(listed), f".{name}" if name else ""
    read = reader(f"item{below}")

    def problems(owner: Any, base: str) -> Iterator[Problem]:
        values = [read(owner, item) for item in items(owner, None) or ()]
        for index, value in enumerate(values):
            if value in values[:index]:
                yield Problem(f"{base}.{listed}[{index}]{below}", message.format(show(value)))

    if not cel:
        return Rule(problems)
    once = f"self.{listed}.exists_one(other, other{below} == item{below})"
    text = f"{listed} must have different {name or 'item'}s"
    return Rule(problems, f"{(~given(listed)).cel} || self.{listed}.all(item, {once})", text)


def _of_item(path: str) -> str:
    """The path of a rule's field in its conditions."""
    _, is_of_items, below = path.partition("[]")
    return f"item{below}" if is_of_items else path


def problems_of(value: object, rules: Mapping[type, tuple[Rule, ...]], path: str) -> Iterator[Problem]:
    """Yields the problems of a value at `path` and of all objects in it."""
    if isinstance(value, msgspec.Struct):
        for found in rules.get(type(value), ()):
            yield from found.problems(value, path)
        for name, encoded in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            yield from problems_of(getattr(value, name), rules, f"{path}.{encoded}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from problems_of(item, rules, f"{path}[{index}]")


@cache
def defaults_of(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The defaults of the fields by their names in a manifest."""
    return {field.encode_name: field.default for field in msgspec.structs.fields(kind)}


def _as_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return show(str(value) if isinstance(value, StrEnum) else value)
