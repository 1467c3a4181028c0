"""Whether a value fits a JSON schema, as far as that is cheap to check for a schema of an untrusted client.

Checked are `type`, `enum`, `const`, `required`, `properties`, `additionalProperties: false` and `items` (JSON Schema
2020-12, validation vocabulary). Other keywords are ignored, so a value may fit here and not by a full validator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST_CHECKS = 20_000
_KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def fits(value: Any, schema: Any) -> bool:
    """Whether `value`, decoded from JSON, fits `schema`. After `_MOST_CHECKS` the rest counts as fitting, so that a
    large schema costs little."""
    waiting, checks = [(value, schema)], 0
    while waiting and checks < _MOST_CHECKS:
        value, schema = waiting.pop()
        if schema is False:
            return False
        if not isinstance(schema, dict):
            continue
        allowed, required, properties = schema.get("enum"), schema.get("required"), schema.get("properties")
        checks += 1 + sum(len(part) for part in (allowed, required) if isinstance(part, list))
        if not _is_of_kind(value, schema.get("type")) or ("const" in schema and value != schema["const"]):
            return False
        if isinstance(allowed, list) and value not in allowed:
            return False
        if isinstance(value, dict):
            properties = properties if isinstance(properties, dict) else {}
            if isinstance(required, list) and any(name not in value for name in map(str, required)):
                return False
            if schema.get("additionalProperties") is False and not value.keys() <= properties.keys():
                return False
            waiting += [(value[name], properties[name]) for name in value.keys() & properties.keys()]
        elif isinstance(value, list) and "items" in schema:
            waiting += [(item, schema["items"]) for item in value]
    return True


def _is_of_kind(value: Any, kinds: Any) -> bool:
    names = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(names, list):
        return True
    return any(_is_one(value, name) for name in names)


def _is_one(value: Any, name: Any) -> bool:
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None or isinstance(value, bool):
        return kind is None or kind is bool
    return isinstance(value, kind) or (name == "integer" and isinstance(value, float) and value.is_integer())
