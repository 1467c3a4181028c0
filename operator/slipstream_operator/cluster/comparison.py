"""Comparisons: of an object in the cluster with its desired fields, where lists are matched as the API server merges
them, and of mappings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

# The keys by which Kubernetes merges lists; any other list is one value.
_ITEM_KEYS = (("uid",), ("containerPort", "protocol"), ("port", "protocol"), ("mountPath",), ("name",), ("type",))
_DEFAULTS = {"protocol": "TCP"}
_UNITS = {"": Fraction(1), "m": Fraction(1, 1000)}
_UNITS |= {name: Fraction(1000) ** power for power, name in enumerate("kMGTPE", 1)}
_UNITS |= {f"{name}i": Fraction(1024) ** power for power, name in enumerate("KMGTPE", 1)}
_QUANTITY = re.compile(rf"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>{'|'.join(_UNITS)})")


def has(live: Any, desired: Any) -> bool:
    """Whether `live` has everything in `desired`; other fields of `live` belong to other clients."""
    if isinstance(desired, dict):
        if not desired and live is None:
            return True
        return isinstance(live, dict) and all(has(live.get(name), value) for name, value in desired.items())
    if isinstance(desired, list | tuple):
        return _has_items(live, desired)
    if isinstance(live, str) and isinstance(desired, str):
        return live == desired or _is_same_amount(live, desired)
    return bool(live == desired) and isinstance(live, bool) == isinstance(desired, bool)


def _has_items(live: Any, desired: Sequence[Any]) -> bool:
    if live is None:
        return not desired
    if not isinstance(live, list):
        return False
    keys = next((keys for keys in _ITEM_KEYS if desired and _tells_apart(keys, desired)), None)
    if keys is None:
        return len(live) == len(desired) and all(map(has, live, desired))
    known = {_identity(item, keys): item for item in live}
    return all(has(known.get(_identity(item, keys)), item) for item in desired)


def _tells_apart(keys: tuple[str, ...], items: Sequence[Any]) -> bool:
    """Whether all `items` have `keys`, each with other values."""
    found = [_identity(item, keys) for item in items]
    return None not in found and len(set(found)) == len(found)


def _identity(item: Any, keys: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The item's values of `keys`; None if one is missing."""
    if not isinstance(item, dict):
        return None
    values = tuple(item.get(key, _DEFAULTS.get(key)) for key in keys)
    return None if any(value is None or isinstance(value, dict | list) for value in values) else values


def _is_same_amount(live: str, desired: str) -> bool:
    """Whether both are quantities of the same amount: the API server writes 1000m as 1, and 1024Mi as 1Gi."""
    amounts = [_amount(text) for text in (live, desired)]
    return amounts[0] is not None and amounts[0] == amounts[1]


def _amount(text: str) -> Fraction | None:
    found = _QUANTITY.fullmatch(text)
    return None if found is None else Fraction(found["number"]) * _UNITS[found["unit"]]


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """The keys whose values differ."""
    names = before.keys() | after.keys()
    return {name for name in names if before.get(name) is not (new := after.get(name)) and before.get(name) != new}


def without_blanks(value: Any) -> Any:
    """`value` without the fields that are null or an empty text: readers treat both as missing.

    The API server stores no nulls, and some versions (1.20) treat an empty text as null.
    """
    if isinstance(value, dict):
        return {name: without_blanks(item) for name, item in value.items() if item is not None and item != ""}
    if isinstance(value, list | tuple):
        return [without_blanks(item) for item in value]
    return value


def merge_patch(live: Any, desired: dict[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7396) from `live` to `desired`, neither of which has nulls. It is empty if they are
    equal."""
    if not isinstance(live, dict):
        return desired
    patch: dict[str, Any] = {name: None for name in live if name not in desired}
    for name, value in desired.items():
        known = live.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            if changed := merge_patch(known, value):
                patch[name] = changed
        elif name not in live or known != value:
            patch[name] = value
    return patch
