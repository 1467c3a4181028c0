"""The file of classes: a draft length for each class of requests, and rules that give requests without a class one.

    classes:
      summarization/long: {length: 4, min_acceptance: 0.4}
      chat: {length: 2, max_running: 32}
      unlabelled: {length: 0}                  # requests that have no class and match no rule
    rules:                                     # the first rule that matches applies
      - {class: chat, endpoint: chat, tools: false, response_format: false}
      - {class: summarization/long, model: MODEL, max_tokens: [256, null]}

A rule without conditions matches every request.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import yaml

MAX_CLASS_CHARS = 64
UNLABELLED = "unlabelled"
ENDPOINTS = ("chat", "completions", "responses")
_CLASS = re.compile(r"[a-z_]+(/[a-z]+)?")
_CLASS_FORM = f"'task' or 'task/length' in the letters a-z (and _ in the task), at most {MAX_CLASS_CHARS} characters,"


class ClassFileError(ValueError):
    """The file is invalid. The message names the field and its value."""


class Traits(NamedTuple):
    """The traits of a request that rules match. `max_tokens` includes the server's default."""

    endpoint: str
    model: str | None
    max_tokens: int | None
    tools: bool
    response_format: bool


@dataclass(frozen=True, kw_only=True)
class ClassLength:
    """The draft length of a class. It is 0 while the class's acceptance is below `min_acceptance`, and while more
    than `max_running` requests run in the server."""

    length: int
    min_acceptance: float = 0.0
    max_running: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A class for the requests with all of these traits; None matches every value. `max_tokens` is inclusive."""

    label: str
    endpoint: str | None = None
    model: str | None = None
    max_tokens: tuple[int | None, int | None] = (None, None)
    tools: bool | None = None
    response_format: bool | None = None

    def matches(self, request: Traits) -> bool:
        least, most = self.max_tokens
        limit = request.max_tokens
        return (
            self.endpoint in (None, request.endpoint)
            and self.model in (None, request.model)
            and self.tools in (None, request.tools)
            and self.response_format in (None, request.response_format)
            and (least is None or (limit is not None and limit >= least))
            and (most is None or (limit is not None and limit <= most))
        )


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The content of the file."""

    lengths: Mapping[str, ClassLength] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    def label(self, request: Traits) -> str | None:
        """The class of a request without one, or None if no rule matches."""
        return next((rule.label for rule in self.rules if rule.matches(request)), None)


def is_class(value: object) -> TypeGuard[str]:
    """Whether `value` is a class label, such as `summarization/long`."""
    return isinstance(value, str) and len(value) <= MAX_CLASS_CHARS and _CLASS.fullmatch(value) is not None


def class_problem(name: str, value: object) -> str:
    """The message for a `value` of the field `name` that is not a class label."""
    return f"{name} is {value!r}; {_CLASS_FORM} is required."


def parse(text: str, most: int) -> Classes:
    """The classes of a file in YAML or JSON, for a server that drafts up to `most` tokens. Raises: `ClassFileError`."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        raise ClassFileError(f"the file is not YAML: {' '.join(str(error).split())}") from error
    top = _mapping(content, "the file", ("classes", "rules"))
    entries = top.get("classes")
    if not isinstance(entries, dict) or not entries:
        raise ClassFileError(f"classes is {reprlib.repr(entries)}; a mapping with at least one class is required.")
    rules = top.get("rules", [])
    if not isinstance(rules, list):
        raise ClassFileError(f"rules is {reprlib.repr(rules)}; a list is required.")
    lengths = {label: _class_length(label, entry, most) for label, entry in entries.items()}
    return Classes(lengths=lengths, rules=tuple(_rule(f"rules[{at}]", rule, lengths) for at, rule in enumerate(rules)))


def _class_length(label: object, entry: object, most: int) -> ClassLength:
    if not is_class(label):
        raise ClassFileError(class_problem("a name in classes", label))
    name = f"classes.{label}"
    fields = _mapping(entry, name, ("length", "min_acceptance", "max_running"))
    acceptance = fields.get("min_acceptance", 0.0)
    if isinstance(acceptance, bool) or not isinstance(acceptance, int | float) or not 0 <= acceptance <= 1:
        raise ClassFileError(f"{name}.min_acceptance is {acceptance!r}; a number from 0 to 1 is required.")
    running = fields.get("max_running")
    return ClassLength(
        length=_integer(fields.get("length"), f"{name}.length", most),
        min_acceptance=acceptance,
        max_running=None if running is None else _integer(running, f"{name}.max_running"),
    )


def _rule(name: str, entry: object, labels: Collection[str]) -> Rule:
    fields = _mapping(entry, name, ("class", "endpoint", "model", "max_tokens", "tools", "response_format"))
    label, endpoint, model = fields.get("class"), fields.get("endpoint"), fields.get("model")
    if not isinstance(label, str) or label not in labels:
        raise ClassFileError(f"{name}.class is {label!r}; a name in classes is required.")
    if endpoint is not None and endpoint not in ENDPOINTS:
        raise ClassFileError(f"{name}.endpoint is {endpoint!r}; one of {', '.join(ENDPOINTS)} is required.")
    if model is not None and not isinstance(model, str):
        raise ClassFileError(f"{name}.model is {model!r}; a text is required.")
    for flag in ("tools", "response_format"):
        if not isinstance(fields.get(flag), bool | None):
            raise ClassFileError(f"{name}.{flag} is {fields[flag]!r}; true or false is required.")
    return Rule(
        label=label,
        endpoint=endpoint,
        model=model,
        max_tokens=_range(fields.get("max_tokens", [None, None]), f"{name}.max_tokens"),
        tools=fields.get("tools"),
        response_format=fields.get("response_format"),
    )


def _mapping(value: object, name: str, known: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ClassFileError(f"{name} is {reprlib.repr(value)}; a mapping is required.")
    for key in value:
        if key not in known:
            raise ClassFileError(f"{name} has the unknown field {key!r}; known fields: {', '.join(known)}.")
    return value


def _integer(value: object, name: str, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (most is not None and value > most):
        limits = "of at least 0" if most is None else f"from 0 to {most} (num_speculative_tokens of this server)"
        raise ClassFileError(f"{name} is {value!r}; an integer {limits} is required.")
    return value


def _range(value: object, name: str) -> tuple[int | None, int | None]:
    if not isinstance(value, list) or len(value) != 2:
        raise ClassFileError(
            f"{name} is {reprlib.repr(value)}; a list of the smallest and the largest number is required."
        )
    least, most = (None if end is None else _integer(end, name) for end in value)
    if least is not None and most is not None and least > most:
        raise ClassFileError(f"{name} is {value!r}; the first number must not be above the second one.")
    return least, most
