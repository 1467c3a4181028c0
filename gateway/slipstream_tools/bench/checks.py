"""Quality checks of answers: label, json-schema, fields, contains. Each gives a score in [0, 1]; 1 is a pass.

A request's checks are built with their references before anything runs, so that a bad reference is an input error and
not a failed answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema
from referencing import Registry, Resource
from referencing.exceptions import CannotDetermineSpecification, NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012
from slipstream_core.errors import SlipstreamError, shorten

Check = Callable[[str], float]
_FENCE = re.compile(r"\A```\w*\s*\n(.*?)\n?```\s*\Z", re.DOTALL)
_LINE = re.compile(r"^[-*\s]*([^:\n]{1,80}?)\s*:\s*(.*?)\s*$", re.MULTILINE)
_PUNCTUATION = " \t\r\n.,;:!?\"'`*"
_UNUSABLE = (ValueError, TypeError, AttributeError, OverflowError, RecursionError,
             Unresolvable, NoSuchResource, CannotDetermineSpecification)  # fmt: skip
"""Errors that untrusted values can raise here and in `jsonschema`: huge numbers, deep nesting, a schema that refers to
itself, a `$schema` that is not a string."""


class CheckError(SlipstreamError):
    """An unknown check, or an unusable reference; one line, without the place in the file."""


def make_checks(check: object, reference: object) -> dict[str, Check]:
    """The checks of one row: `check` is a name, a list of names (all take `reference`), or an object of references by
    name. Empty where it is None.

    Raises:
        CheckError: names the check and the reason.
    """
    if check is None:
        return {}
    names = check if isinstance(check, list) else [check]
    references = check.items() if isinstance(check, Mapping) else [(name, reference) for name in names]
    return {_name(name): _made(_name(name), value) for name, value in references}


def _made(name: str, reference: object) -> Check:
    """The check; an answer that it cannot handle scores 0. Raises `CheckError`."""
    try:
        check = _MAKERS[name](reference)
    except _UNUSABLE as error:
        why = shorten(f"{type(error).__name__}: {error}")
        raise CheckError(f"check '{name}': its reference cannot be used: {why}") from error

    def score(answer: str) -> float:
        try:
            return check(answer)
        except _UNUSABLE:
            return 0.0

    return score


def _name(value: object) -> str:
    if not isinstance(value, str) or value not in _MAKERS:
        raise CheckError(f"'check' must be of {', '.join(_MAKERS)}, got {_show(value)}")
    return value


def _label(reference: object) -> Check:
    """The answer is one of the reference's labels, ignoring case and surrounding spaces and punctuation."""
    labels = {_plain(text) for text in _texts("label", reference)}
    return lambda answer: float(_plain(answer) in labels)


def _contains(reference: object) -> Check:
    """The share of the reference's texts that occur in the answer, ignoring case and line breaks."""
    wanted = [_folded(text) for text in _texts("contains", reference)]

    def score(answer: str) -> float:
        folded = _folded(answer)
        return sum(text in folded for text in wanted) / len(wanted)

    return score


def _json_schema(reference: object) -> Check:
    """The answer is JSON, alone or in a code fence, that satisfies the schema. A `$ref` is never fetched."""
    if not isinstance(reference, Mapping | bool):
        raise CheckError(f"check 'json-schema' needs a schema as its reference, got {_show(reference)}")
    resolver = Registry().resolver_with_root(Resource.from_contents(reference, default_specification=DRAFT202012))
    name = ""
    try:
        kind = jsonschema.validators.validator_for(reference, default=jsonschema.Draft202012Validator)
        kind.check_schema(reference)
        for name in _references(reference):
            resolver.lookup(name)
    except jsonschema.SchemaError as error:
        raise CheckError(f"check 'json-schema': the reference is no valid schema: {error.message}") from error
    except Unresolvable as error:
        raise CheckError(f"check 'json-schema': the reference refers to {_show(name)}, which is not in it") from error
    validator = kind(reference, registry=Registry())
    return lambda answer: float(validator.is_valid(_parse(answer)))


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and isinstance(value.get("$ref"), str):
        yield value["$ref"]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _references(part)


def _fields(reference: object) -> Check:
    """The share of the reference's fields that the answer has with an equal value: as a JSON object, or as lines
    `name: value`."""
    if isinstance(reference, str):
        try:
            reference = json.loads(reference)
        except ValueError:
            reference = shorten(str(reference))
    if not isinstance(reference, Mapping) or not reference:
        raise CheckError(f"check 'fields' needs a JSON object with fields as its reference, got {_show(reference)}")
    wanted = {_key(name): _value(value) for name, value in reference.items()}

    def score(answer: str) -> float:
        found = _answer_fields(answer)
        return sum(name in found and found[name] == value for name, value in wanted.items()) / len(wanted)

    return score


_MAKERS: dict[str, Callable[[object], Check]] = {
    "label": _label,
    "json-schema": _json_schema,
    "fields": _fields,
    "contains": _contains,
}


def _answer_fields(answer: str) -> dict[str, object]:
    try:
        parsed = _parse(answer)
    except ValueError:
        parsed = dict(_LINE.findall(answer))
    if not isinstance(parsed, Mapping):
        return {}
    return {_key(name): _value(value) for name, value in parsed.items()}


def _parse(answer: str) -> Any:
    """The JSON value of an answer. Raises `ValueError`."""
    text = answer.strip()
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _texts(name: str, reference: object) -> list[str]:
    texts = reference if isinstance(reference, list) else [reference]
    usable = [text for text in texts if isinstance(text, str) and text.strip()]
    if not texts or len(usable) < len(texts):
        raise CheckError(f"check '{name}' needs a text or a list of texts as its reference, got {_show(reference)}")
    return usable


def _plain(text: str) -> str:
    return _folded(text).strip(_PUNCTUATION)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _key(name: object) -> str:
    return re.sub(r"[\s_-]+", " ", str(name)).strip().casefold()


def _value(value: object) -> object:
    """A value for comparison: numbers and numeric strings as float, strings without case and extra spaces, booleans as
    words."""
    if isinstance(value, bool):
        return str(value).casefold()
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return _folded(value)
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, list):
        return [_value(item) for item in value]
    if isinstance(value, Mapping):
        return {_key(name): _value(item) for name, item in value.items()}
    return value


def _show(value: object) -> str:
    return shorten(json.dumps(value, ensure_ascii=False, default=str))
