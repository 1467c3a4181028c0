"""Removal of fields that this version does not know: a newer version may have written them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import inspect


class Pruned(NamedTuple):
    """A value without unknown fields, and the paths of the removed fields, such as `spec.foo`."""

    value: object
    ignored: tuple[str, ...]


def prune(value: object, expected: inspect.Type) -> Pruned:
    """`value` without the fields that `expected` does not have. Other mismatches stay, for `check` to report."""
    ignored: list[str] = []
    return Pruned(_prune(value, expected, "", ignored), tuple(ignored))


def _prune(value: object, expected: inspect.Type, path: str, ignored: list[str]) -> object:
    match expected:
        case inspect.Metadata():
            return _prune(value, expected.type, path, ignored)
        case inspect.StructType() if isinstance(value, Mapping):
            return _prune_struct(value, expected, path, ignored)
        case inspect.UnionType() if (chosen := _member(value, expected)) is not None:
            return _prune(value, chosen, path, ignored)
        case inspect.VarTupleType() if isinstance(value, list):
            return [_prune(item, expected.item_type, f"{path}[{index}]", ignored) for index, item in enumerate(value)]
    return value


def _prune_struct(
    value: Mapping[object, object], expected: inspect.StructType, path: str, ignored: list[str]
) -> Mapping[object, object]:
    if not expected.forbid_unknown_fields:
        return value
    fields = {field.encode_name: field.type for field in expected.fields}
    kept: dict[object, object] = {}
    for key, item in value.items():
        inner = f"{path}.{key}" if path else str(key)
        if isinstance(key, str) and key in fields:
            kept[key] = _prune(item, fields[key], inner, ignored)
        elif key == expected.tag_field:
            kept[key] = item
        else:
            ignored.append(inner)
    return kept


def _member(value: object, expected: inspect.UnionType) -> inspect.Type | None:
    """The member of a union that `value` is meant to be; None if that is ambiguous."""
    others = [kind for kind in expected.types if not isinstance(kind, inspect.NoneType)]
    if value is None or len(others) == 1:
        return None if value is None else others[0]
    structs = [kind for kind in others if isinstance(kind, inspect.StructType)]
    tag = value.get(structs[0].tag_field) if isinstance(value, Mapping) else None
    return next((kind for kind in structs if kind.tag == tag), None)
