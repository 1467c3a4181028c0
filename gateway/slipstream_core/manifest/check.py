"""Validation of plain values against the manifest's types. It reports every problem with its field path, not only the
first."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import inspect

MAX_FREE_FORM_DEPTH = 24
MAX_INTEGER = 2**63 - 1


class Problem(NamedTuple):
    """A problem of one field, e.g. `spec.maxDraftTokens` and `must be between 1 and 32, got 0`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def show(value: object) -> str:
    """`value` for a message: short and on one line."""
    if value is None:
        return "nothing"
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:  # Python refuses to format integers of thousands of digits
        return "a number too long to show"
    except RecursionError:
        return "a value too deep to show"
    return text if len(text) <= 80 else f"{text[:77]}..."


def check(value: object, expected: inspect.Type, path: str = "") -> Iterator[Problem]:
    """Yields every reason why `value` is not a valid `expected`, and nothing for a valid value."""
    match expected:
        case inspect.Metadata():
            yield from check(value, expected.type, path)
        case inspect.StructType():
            yield from _check_struct(value, expected, path)
        case inspect.UnionType():
            yield from _check_union(value, expected, path)
        case inspect.VarTupleType():
            yield from _check_list(value, expected, path)
        case inspect.DictType(value_type=inspect.AnyType()):
            yield from _check_free_form(value, path)
        case inspect.DictType():
            yield from _check_dict(value, expected, path)
        case _:
            if message := _check_scalar(value, expected):
                yield Problem(path, f"{message}, got {show(value)}")


def _check_struct(value: object, expected: inspect.StructType, path: str) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(path, f"must be a mapping, got {show(value)}")
        return
    known = {field.encode_name: field for field in expected.fields}
    names = [*known, *([expected.tag_field] if expected.tag_field else [])]
    for key in value:
        if key not in names and expected.forbid_unknown_fields:
            yield Problem(_join(path, key), f"unknown field{_suggest(key, names)}")
    for name, field in known.items():
        if name in value:
            yield from check(value[name], field.type, _join(path, name))
        elif field.required:
            yield Problem(_join(path, name), "is required")


def _check_union(value: object, expected: inspect.UnionType, path: str) -> Iterator[Problem]:
    """A union is either `something | None`, or tagged structs."""
    if value is None and any(isinstance(kind, inspect.NoneType) for kind in expected.types):
        return
    if (chosen := member_of(value, expected)) is not None:
        yield from check(value, chosen, path)
        return
    if not isinstance(value, Mapping):
        yield Problem(path, f"must be a mapping, got {show(value)}")
        return
    structs = _structs(expected)
    tag_field = structs[0].tag_field or ""
    message = f"must be {_one_of([kind.tag for kind in structs])}, got {show(value.get(tag_field))}"
    yield Problem(_join(path, tag_field), message)


def member_of(value: object, expected: inspect.UnionType) -> inspect.Type | None:
    """The member of a union that `value` is meant to be; None if that is ambiguous."""
    others = [kind for kind in expected.types if not isinstance(kind, inspect.NoneType)]
    if value is None or len(others) == 1:
        return None if value is None else others[0]
    structs = _structs(expected)
    tag = value.get(structs[0].tag_field) if isinstance(value, Mapping) else None
    return next((kind for kind in structs if kind.tag == tag), None)


def _structs(expected: inspect.UnionType) -> list[inspect.StructType]:
    return [kind for kind in expected.types if isinstance(kind, inspect.StructType)]


def _check_list(value: object, expected: inspect.VarTupleType, path: str) -> Iterator[Problem]:
    if not isinstance(value, list):
        yield Problem(path, f"must be a list, got {show(value)}")
        return
    if expected.min_length is not None and len(value) < expected.min_length:
        yield Problem(path, f"must have at least {expected.min_length} item(s), got {len(value)}")
    if expected.max_length is not None and len(value) > expected.max_length:
        yield Problem(path, f"must have at most {expected.max_length} items, got {len(value)}")
    for index, item in enumerate(value):
        yield from check(item, expected.item_type, f"{path}[{index}]")


def _check_dict(value: object, expected: inspect.DictType, path: str) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(path, f"must be a mapping, got {show(value)}")
        return
    if expected.max_length is not None and len(value) > expected.max_length:
        yield Problem(path, f"must have at most {expected.max_length} entries, got {len(value)}")
    for key, item in value.items():
        if message := _check_scalar(key, expected.key_type):
            yield Problem(path, f"a key {message}, got {show(key)}")
        else:
            yield from check(item, expected.value_type, _join(path, key))


def _check_free_form(value: object, path: str) -> Iterator[Problem]:
    """A mapping without a schema of ours: any JSON value is valid."""
    if not isinstance(value, Mapping):
        yield Problem(path, f"must be a mapping, got {show(value)}")
    elif message := _not_json(value, MAX_FREE_FORM_DEPTH):
        yield Problem(path, message)


def _not_json(value: object, depth: int) -> str | None:
    """The reason why `value` cannot be JSON within `depth` levels, or None if it can."""
    if depth == 0:
        return f"must not be nested deeper than {MAX_FREE_FORM_DEPTH} levels"
    match value:
        case Mapping():
            if (key := next((key for key in value if not isinstance(key, str)), None)) is not None:
                return f"must have strings as keys (put them in quotes), got {show(key)}"
            return next(filter(None, (_not_json(item, depth - 1) for item in value.values())), None)
        case list():
            return next(filter(None, (_not_json(item, depth - 1) for item in value)), None)
        case bool() | None:
            return None
        case str():
            return None if _is_text(value) else f"must not have lone surrogates, got {show(value)}"
        case int():
            return None if abs(value) <= MAX_INTEGER else f"must have whole numbers of 64 bits, got {show(value)}"
        case float():
            return None if math.isfinite(value) else f"must have finite numbers, got {show(value)}"
    return f"must have JSON types only, got {show(value)}"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_scalar(value: object, expected: inspect.Type) -> str | None:
    """The requirement that `value` fails to meet, or None if it is valid."""
    match expected:
        case inspect.BoolType():
            return None if isinstance(value, bool) else "must be true or false"
        case inspect.IntType():
            return _check_number(value, expected, int, "a whole number")
        case inspect.FloatType():
            return _check_number(value, expected, (int, float), "a number")
        case inspect.LiteralType(values=values):
            return None if isinstance(value, str) and value in values else f"must be {_one_of(values)}"
        case inspect.EnumType(cls=cls):
            names = [member.value for member in cls]
            return None if isinstance(value, str) and value in names else f"must be {_one_of(names)}"
        case inspect.StrType():
            return _check_string(value, expected)
    raise TypeError(f"no check for {expected!r}")


def _check_number(
    value: object, expected: inspect.IntType | inspect.FloatType, types: type | tuple[type, ...], noun: str
) -> str | None:
    if not isinstance(value, types) or isinstance(value, bool):
        return f"must be {noun}"
    number: Any = value
    if isinstance(number, float) and not math.isfinite(number):
        return f"must be {noun} that is finite"
    low, high = expected.ge, expected.le
    if expected.gt is not None and number <= expected.gt:
        return f"must be above {expected.gt}"
    if expected.lt is not None and number >= expected.lt:
        return f"must be below {expected.lt}"
    if (low is not None and number < low) or (high is not None and number > high):
        return f"must be between {low} and {high}" if high is not None else f"must be at least {low}"
    return None


def _check_string(value: object, expected: inspect.StrType) -> str | None:
    if not isinstance(value, str):
        return "must be a string (put it in quotes)" if isinstance(value, (int, float)) else "must be a string"
    if not value.isprintable():
        return "must not have control characters or lone surrogates"
    if len(value) < (expected.min_length or 0):
        return "must not be empty"
    if expected.max_length is not None and len(value) > expected.max_length:
        return f"must have at most {expected.max_length} characters"
    if expected.pattern is not None and re.fullmatch(expected.pattern, value) is None:
        return f"must match {expected.pattern}"
    return None


def _join(path: str, name: object) -> str:
    label = name if isinstance(name, str) and name.isprintable() else show(name)
    return f"{path}.{label}" if path else str(label)


def _one_of(names: Any) -> str:
    return " or ".join((", ".join(list(names)[:-1]), list(names)[-1])) if len(names) > 1 else str(next(iter(names)))


def _suggest(key: object, names: list[str]) -> str:
    close = difflib.get_close_matches(key if isinstance(key, str) else show(key), names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known fields: {', '.join(names)}"
